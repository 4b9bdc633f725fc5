// xxHash checksums, XXH3 unless said otherwise: for data that may be damaged, not for data that may
// be forged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
};

// 16 and 32 hex digits, the most significant first, as the program xxhsum prints them.
std::string hex(uint64_t hash);
std::string hex(const Hash128& hash);
bool from_hex(std::string_view text, uint64_t& hash);  // lower case, all digits, or false
bool from_hex(std::string_view text, Hash128& hash);

uint64_t hash64(std::span<const std::byte> bytes);
Hash128 hash128(std::span<const std::byte> bytes);
inline uint64_t hash64(std::string_view text) {
  return hash64(std::as_bytes(std::span(text)));
}

// The older hash XXH64, seed 0, that other tools' files name.
uint64_t xxh64(std::span<const std::byte> bytes);

// The same hashes of bytes that come in pieces; the cuts between the pieces do not matter.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  uint64_t digest64() const;  // of all so far; more may follow
  Hash128 digest128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
