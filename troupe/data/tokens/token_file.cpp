#include "troupe/data/tokens/token_file.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {

std::string token_prefix(const std::string& path) {
  const bool has_suffix = path.ends_with(".bin") || path.ends_with(".idx");
  return has_suffix ? path.substr(0, path.size() - 4) : path;
}

TokenFile::TokenFile(const std::string& path, const Log& log, const RemoteAccess& remote)
    : bin_(open_data_file(token_prefix(path) + ".bin", remote)),
      index_(token_prefix(path) + ".idx", bin_->size(), remote) {
  const int64_t item = size_bytes(index_.type());
  if (bin_->size() % item != 0) {
    fail(Code::kBadTokenFile, bin_->path(), "has", bin_->size(), "bytes, no multiple of the", item,
         "that a token of type", name(index_.type()), "has");
  }
  if (bin_->size() > index_.end_in_bin()) {
    log.warning(bin_->path() + " has " + std::to_string(bin_->size()) + " bytes; its index uses " +
                std::to_string(index_.end_in_bin()) + " of them");
  }
  if (!index_.is_contiguous()) {
    std::vector<int32_t> lengths(static_cast<size_t>(index_.num_sequences()));
    index_.lengths(0, lengths);
    starts_.assign(1, 0);
    for (const int32_t length : lengths) starts_.push_back(starts_.back() + length);
  }
  const std::string weights = token_prefix(path) + ".weights";
  weights_ = find_data_file(weights, remote);
  if (weights_ && weights_->size() != num_tokens()) {
    fail(Code::kBadTokenFile, weights, "has", weights_->size(), "bytes; one for each of the",
         num_tokens(), "tokens is expected");
  }
}

void TokenFile::starts(int64_t first, std::span<int64_t> out) const {
  if (!starts_.empty()) {
    std::copy_n(starts_.begin() + first, out.size(), out.begin());
    return;
  }
  // Without gaps a byte offset is a number of tokens; the end of the last one is in no array.
  const auto stored = static_cast<size_t>(std::min(std::ssize(out), num_sequences() - first));
  index_.offsets(first, out.first(stored));
  for (int64_t& start : out.first(stored)) start /= size_bytes(index_.type());
  if (stored < out.size()) out[stored] = num_tokens();
}

void TokenFile::read_run(int64_t offset, std::span<int32_t> out) const {
  std::vector<std::byte> bytes(out.size() * static_cast<size_t>(size_bytes(index_.type())));
  bin_->read(offset, bytes);
  widen(index_.type(), bytes, out);
}

void TokenFile::read(int64_t first, std::span<int32_t> out) const {
  TROUPE_CHECK(0 <= first && std::ssize(out) <= num_tokens() - first, first, out.size(),
               num_tokens());
  if (starts_.empty()) return read_run(first * size_bytes(index_.type()), out);
  while (!out.empty()) {
    const int64_t sequence = sequence_at(first);
    int64_t offset = 0;
    index_.offsets(sequence, {&offset, 1});
    const int64_t skip = first - start(sequence);
    const auto count = static_cast<size_t>(std::min(std::ssize(out), start(sequence + 1) - first));
    read_run(offset + skip * size_bytes(index_.type()), out.first(count));
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

void TokenFile::read_weights(int64_t first, std::span<float> out) const {
  if (!weights_) return TokenSource::read_weights(first, out);
  std::vector<uint8_t> bytes(out.size());
  read_array<uint8_t>(*weights_, first, bytes);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

void TokenFile::require_unchanged() const {
  bin_->require_unchanged();
  index_.file().require_unchanged();
  if (weights_) weights_->require_unchanged();
}

std::string TokenFile::fingerprint() const {
  constexpr int64_t kBlocks = 64, kBytes = 4096;  // spread over the .bin
  Hasher hasher;
  std::vector<std::byte> block;
  for (int64_t i = 0; i < kBlocks; ++i) {
    const int64_t first = bin_->size() / kBlocks * i;
    block.resize(static_cast<size_t>(std::min(kBytes, bin_->size() - first)));
    bin_->peek(first, block);
    hasher.update(block);
  }
  return std::to_string(num_tokens()) + " tokens, index " + hex(index_.hash()) + ", tokens " +
         hex(hasher.digest64());
}

}  // namespace troupe
