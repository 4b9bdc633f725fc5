// Finds added tokens in a text: leftmost first, of those that begin there the longest. A byte of
// the text costs a look at two bits, where no token begins so, else a search among the sorted
// tokens; the tokens take the memory of their spellings.
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
  TokenMatcher() = default;
  // Each token with the spelling to find; an empty spelling is never found. Where two tokens
  // have one spelling, the first counts.
  explicit TokenMatcher(std::vector<std::pair<std::string, AddedToken>> tokens);
  bool empty() const { return spellings_.empty(); }

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
  struct Spelling {
    std::string text;
    int32_t longest_prefix = -1;  // the longest other spelling that this one begins with
    AddedToken token;
  };
  struct Found {
    size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };

  bool find(std::string_view text, size_t from, Found& found) const;
  // The longest token with which `text` begins; -1: none.
  int32_t longest_at(std::string_view text) const;
  // The white space that the token takes along; false: it is part of a word and must not be.
  static bool widen(std::string_view text, size_t done, const AddedToken& token, size_t& begin,
                    size_t& end);

  std::vector<Spelling> spellings_;  // in the order of their bytes
  size_t longest_ = 0;               // of them
  // Whether a token is this byte; and whether one begins with these two.
  std::array<bool, 256> is_one_{};
  std::vector<bool> begins_ = std::vector<bool>(size_t{1} << 16);
};

}  // namespace troupe
