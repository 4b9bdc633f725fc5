#include "troupe/data/tokenizer/token_matcher.h"

#include <algorithm>

#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/unicode.h"

namespace troupe {
namespace {

size_t first_two(std::string_view text) {
  return static_cast<size_t>(static_cast<unsigned char>(text[0])) << 8 |
         static_cast<unsigned char>(text[1]);
}

}  // namespace

TokenMatcher::TokenMatcher(std::vector<std::pair<std::string, AddedToken>> tokens) {
  std::erase_if(tokens, [](const auto& token) { return token.first.empty(); });
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int32_t> open;  // the spellings so far that the next one may begin with
  for (auto& [text, token] : tokens) {
    if (!spellings_.empty() && spellings_.back().text == text) continue;
    while (!open.empty() && !text.starts_with(spellings_[static_cast<size_t>(open.back())].text)) {
      open.pop_back();
    }
    const int32_t prefix = open.empty() ? -1 : open.back();
    open.push_back(static_cast<int32_t>(spellings_.size()));
    if (text.size() == 1) is_one_[static_cast<unsigned char>(text[0])] = true;
    if (text.size() > 1) begins_[first_two(text)] = true;
    longest_ = std::max(longest_, text.size());
    spellings_.push_back({std::move(text), prefix, std::move(token)});
  }
}

// All tokens with which the text begins are prefixes of the last token that is not behind the text
// in the order of bytes: so one search finds them.
int32_t TokenMatcher::longest_at(std::string_view text) const {
  text = text.substr(0, longest_);
  const auto behind =
      std::upper_bound(spellings_.begin(), spellings_.end(), text,
                       [](std::string_view t, const Spelling& s) { return t < s.text; });
  if (behind == spellings_.begin()) return -1;
  const std::string& last = std::prev(behind)->text;
  const auto equal = static_cast<size_t>(
      std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
  auto at = static_cast<int32_t>(std::prev(behind) - spellings_.begin());
  while (at >= 0 && spellings_[static_cast<size_t>(at)].text.size() > equal) {
    at = spellings_[static_cast<size_t>(at)].longest_prefix;
  }
  return at;
}

bool TokenMatcher::find(std::string_view text, size_t from, Found& found) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    const bool may = is_one_[static_cast<unsigned char>(text[begin])] ||
                     (begin + 1 < text.size() && begins_[first_two(text.substr(begin, 2))]);
    const int32_t at = may ? longest_at(text.substr(begin)) : -1;
    if (at < 0) continue;
    const Spelling& s = spellings_[static_cast<size_t>(at)];
    found = {begin, begin + s.text.size(), &s.token};
    return true;
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
