// For tests: a schedule from its text (text.h).
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/schedule/text.h"

namespace troupe {

// Reads "12" from the front of `rest`, if it begins with digits.
inline bool take_number(std::string_view& rest, int& out) {
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (!from_text(rest.substr(0, digits), out)) return false;
  rest.remove_prefix(digits);
  return true;
}

inline bool take_marked(std::string_view& rest, std::string_view marks, int& out) {
  if (rest.empty() || marks.find(rest.front()) == std::string_view::npos) return true;
  rest.remove_prefix(1);
  return take_number(rest, out);
}

inline bool from_word(std::string_view word, Action& out) {
  if (word.empty() || !from_text(word.substr(0, 1), out.kind)) return false;
  out.beside = word.ends_with('&');
  if (out.beside) word.remove_suffix(1);
  std::string_view rest = word.substr(1);
  const std::string_view direction = out.kind == Kind::kSend ? ">" : "<";
  if (!rest.empty() && rest.front() >= '0' && rest.front() <= '9' && !take_number(rest, out.chunk))
    return false;
  if (!take_marked(rest, ".", out.microbatch) || !take_marked(rest, direction, out.peer))
    return false;
  for (char mark = '@'; !rest.empty(); mark = ',') {
    if (rest.front() != mark) return false;
    rest.remove_prefix(1);
    if (!take_number(rest, out.after.emplace_back())) return false;
  }
  return true;
}

// The inverse of to_text(), bit for bit; throws E2005 naming line and word.
inline Schedule parse_schedule(std::string_view text) {
  Schedule out;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    const std::string place = "schedule, line " + std::to_string(out.size() + 1);
    if (word != std::to_string(out.size()) + ':') {
      fail(Code::kBadValue, place, "begins with", to_text(word), "in place of", out.size(),
           "and a colon");
    }
    for (out.emplace_back(); words >> word;) {
      if (!from_word(word, out.back().emplace_back(Action{}))) {
        fail(Code::kBadValue, place, to_text(word),
             "is no action; one looks like F0.3, S2.0>1, B1.0@4");
      }
    }
  }
  return out;
}

}  // namespace troupe
