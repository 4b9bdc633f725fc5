// The one file that knows xxHash.
#include "troupe/core/file/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>
#include <cstdio>

namespace troupe {

struct Hasher::State {
  XXH3_state_t xxh;  // One kind of state serves both widths.
};

namespace {

constexpr size_t kDigits = 16;

Hash128 ours(const XXH128_hash_t& hash) {
  return {hash.high64, hash.low64};
}

}  // namespace

std::string hex(uint64_t hash) {
  char out[kDigits + 1];
  std::snprintf(out, sizeof(out), "%016llx", static_cast<unsigned long long>(hash));
  return out;
}

std::string hex(const Hash128& hash) {
  return hex(hash.high) + hex(hash.low);
}

bool from_hex(std::string_view text, uint64_t& hash) {
  if (text.find_first_not_of("0123456789abcdef") != text.npos || text.size() != kDigits)
    return false;
  std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  return true;
}

bool from_hex(std::string_view text, Hash128& hash) {
  return text.size() == 2 * kDigits && from_hex(text.substr(0, kDigits), hash.high) &&
         from_hex(text.substr(kDigits), hash.low);
}

uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hash128 hash128(std::span<const std::byte> bytes) {
  return ours(XXH3_128bits(bytes.data(), bytes.size()));
}

uint64_t xxh64(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

Hasher::Hasher() : state_(new State) {
  XXH3_INITSTATE(&state_->xxh);
  XXH3_128bits_reset(&state_->xxh);
}
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

uint64_t Hasher::digest64() const {
  return XXH3_64bits_digest(&state_->xxh);
}

Hash128 Hasher::digest128() const {
  return ours(XXH3_128bits_digest(&state_->xxh));
}

}  // namespace troupe
