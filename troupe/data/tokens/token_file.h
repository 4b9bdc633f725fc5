// A Megatron data set as a TokenSource: PREFIX.bin (ids, no header), PREFIX.idx (token_index.h),
// and where `data build` made them of chats, PREFIX.weights: a byte for each token, 1 where it is
// to be learned, 0 where it is context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/data/tokens/token_index.h"
#include "troupe/data/tokens/token_source.h"

namespace troupe {

class TokenFile : public TokenSource {
 public:
  // `path` is PREFIX, or one of the two files. A `.bin` that is longer than its index says is a
  // warning; one that is shorter, or no whole number of tokens, is refused.
  explicit TokenFile(const std::string& path, const Log& log = {}, const RemoteAccess& remote = {});

  const TokenIndex& index() const { return index_; }
  std::string place() const override { return bin_->path(); }
  bool is_far() const override { return bin_->is_far(); }
  int64_t num_sequences() const override { return index_.num_sequences(); }
  int64_t num_tokens() const override { return index_.num_tokens(); }
  void starts(int64_t first, std::span<int64_t> out) const override;
  void read(int64_t first, std::span<int32_t> out) const override;
  bool has_weights() const override { return weights_ != nullptr; }
  void read_weights(int64_t first, std::span<float> out) const override;
  void require_unchanged() const override;
  std::string fingerprint() const override;

 private:
  void read_run(int64_t offset, std::span<int32_t> out) const;

  DataFilePtr bin_;
  TokenIndex index_;
  DataFilePtr weights_;          // null: none
  std::vector<int64_t> starts_;  // [S + 1], only where the sequences leave gaps in the .bin
};

std::string token_prefix(const std::string& path);  // without ".bin" or ".idx"

}  // namespace troupe
