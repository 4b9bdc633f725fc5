// Sequences in memory as a TokenSource, for tests.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "troupe/data/tokens/token_source.h"

namespace troupe {

class MemorySource : public TokenSource {
 public:
  explicit MemorySource(const std::vector<std::vector<int32_t>>& sequences) : starts_{0} {
    for (const auto& sequence : sequences) {
      ids_.insert(ids_.end(), sequence.begin(), sequence.end());
      starts_.push_back(std::ssize(ids_));
    }
  }

  std::string place() const override { return "memory"; }
  int64_t num_sequences() const override { return std::ssize(starts_) - 1; }
  int64_t num_tokens() const override { return std::ssize(ids_); }
  void starts(int64_t first, std::span<int64_t> out) const override {
    std::copy_n(starts_.begin() + first, out.size(), out.begin());
  }
  void read(int64_t first, std::span<int32_t> out) const override {
    std::copy_n(ids_.begin() + first, out.size(), out.begin());
  }
  std::string fingerprint() const override { return "memory"; }

 private:
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_;
};

// One sequence for each length; token i of all is i.
inline std::vector<std::vector<int32_t>> counted(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> out;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    auto& sequence = out.emplace_back();
    for (int64_t i = 0; i < length; ++i) sequence.push_back(next++);
  }
  return out;
}

}  // namespace troupe
