#include "troupe/data/tokenizer/token_matcher.h"

#include <algorithm>

#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/unicode.h"

namespace troupe {

void TokenMatcher::add(const std::string& spelling, const AddedToken& token) {
  if (spelling.empty()) return;
  int32_t node = 0;
  for (const char c : spelling) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_[static_cast<size_t>(node)].next.emplace_back(byte, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  int32_t& here = nodes_[static_cast<size_t>(node)].token;
  if (here >= 0) return;  // two spellings became one: the first counts
  here = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  begins_[static_cast<unsigned char>(spelling[0])] = true;
}

int32_t TokenMatcher::child(int32_t node, unsigned char c) const {
  for (const auto& [byte, next] : nodes_[static_cast<size_t>(node)].next) {
    if (byte == c) return next;
  }
  return -1;
}

bool TokenMatcher::find(std::string_view text, size_t from, Found& found) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    found.token = nullptr;
    int32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      node = child(node, static_cast<unsigned char>(text[at]));
      if (node < 0) break;
      const int32_t token = nodes_[static_cast<size_t>(node)].token;
      if (token >= 0) found = {begin, at + 1, &tokens_[static_cast<size_t>(token)]};
    }
    if (found.token) return true;
  }
  return false;
}

bool TokenMatcher::widen(std::string_view text, size_t done, const AddedToken& token, size_t& begin,
                         size_t& end) {
  begin = std::max(begin, done);  // the token before it may have taken a space of this one
  if (token.single_word) {
    if (begin > 0 && is_word(utf8_at(text, utf8_before(text, begin)).code)) return false;
    if (end < text.size() && is_word(utf8_at(text, end).code)) return false;
  }
  while (token.lstrip && begin > done) {
    const size_t before = utf8_before(text, begin);
    if (!is_space(utf8_at(text, before).code)) break;
    begin = before;
  }
  while (token.rstrip && end < text.size()) {
    const Utf8Char c = utf8_at(text, end);
    if (!is_space(c.code)) break;
    end += c.bytes;
  }
  return true;
}

}  // namespace troupe
