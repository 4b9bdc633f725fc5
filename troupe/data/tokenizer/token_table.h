// Strings to ids. The strings belong to someone else and must stay where they are.
#pragma once

#include <string_view>
#include <unordered_map>

#include "troupe/core/file/hash.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

class TokenTable {
 public:
  // False: the string is there already, and keeps its id.
  bool add(std::string_view token, TokenId id) { return ids_.emplace(token, id).second; }
  TokenId find(std::string_view token) const {
    const auto at = ids_.find(token);
    return at == ids_.end() ? -1 : at->second;
  }
  size_t size() const { return ids_.size(); }
  void reserve(size_t n) { ids_.reserve(n); }

 private:
  struct Hash {
    size_t operator()(std::string_view text) const { return hash64(text); }
  };
  std::unordered_map<std::string_view, TokenId, Hash> ids_;
};

}  // namespace troupe
