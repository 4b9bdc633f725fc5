// Finds added tokens in a text: leftmost first, of those that begin there the longest.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

class TokenMatcher {
 public:
  static constexpr size_t kMostBytes = 1024;  // of a token: what bounds the search at each byte

  // `spelling` is what the text is compared with; an empty one is never found.
  void add(const std::string& spelling, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // f(part, id) for the parts of valid UTF-8 in order, none empty; id is -1 between tokens. With
  // `special_as_text` special tokens are found and left as text.
  template <class F>
  void split(std::string_view text, bool special_as_text, F&& f) const {
    size_t done = 0;
    for (Found found; find(text, found.end, found);) {
      if (special_as_text && found.token->special) continue;
      size_t begin = found.begin, end = found.end;
      if (!widen(text, done, *found.token, begin, end)) continue;
      if (done < begin) f(text.substr(done, begin - done), TokenId{-1});
      f(text.substr(begin, end - begin), found.token->id);
      done = end;
    }
    if (done < text.size()) f(text.substr(done), TokenId{-1});
  }

 private:
  struct Node {
    int32_t token = -1;  // the one that ends here
    std::vector<std::pair<unsigned char, int32_t>> next;
  };
  struct Found {
    size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };

  int32_t child(int32_t node, unsigned char c) const;
  bool find(std::string_view text, size_t from, Found& found) const;
  // The white space that the token takes along; false: it is part of a word and must not be.
  static bool widen(std::string_view text, size_t done, const AddedToken& token, size_t& begin,
                    size_t& end);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = {Node{}};
  std::array<bool, 256> begins_{};  // bytes with which a token begins
};

}  // namespace troupe
