#include "troupe/train/recipe/foreign/shell_condition.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "troupe/core/text/text.h"
#include "troupe/train/recipe/foreign/shell_letters.h"
#include "troupe/train/recipe/foreign/shell_pattern.h"

namespace troupe {
namespace {

using TestWords = std::vector<TestWord>;
constexpr ShellTruth kUnknown = {true, false};

bool is_bracket(const std::string& text) {
  return text == "[" || text == "]" || text == "[[" || text == "]]" || text == "test";
}

ShellTruth of(std::optional<bool> value) {
  return value ? ShellTruth{*value, true} : kUnknown;
}

ShellTruth compared(const std::string& left, const std::string& op, const TestWord& word,
                    bool patterns, int64_t& letters) {
  const std::string& right = word.text;
  if (op == "=" || op == "==" || op == "!=") {
    const ShellTruth same = patterns && !word.quoted ? of(shell_matches(left, right, letters))
                                                     : ShellTruth{left == right};
    return {same.known ? same.holds != (op == "!=") : true, same.known};
  }
  // A quoted expression is letters.
  if (op == "=~") {
    const bool plain = right.find_first_of("^$.*+?()[]{}|\\") == std::string::npos;
    if (!word.quoted && !plain) return kUnknown;
    return {shell_find(left, right) != std::string::npos, true};
  }
  if (patterns && (op == "<" || op == ">")) return {op == "<" ? left < right : left > right, true};
  int64_t a = 0, b = 0;
  if (!from_text(left, a) || !from_text(right, b)) return kUnknown;
  if (op == "-eq") return {a == b, true};
  if (op == "-ne") return {a != b, true};
  if (op == "-lt") return {a < b, true};
  if (op == "-le") return {a <= b, true};
  if (op == "-gt") return {a > b, true};
  if (op == "-ge") return {a >= b, true};
  return kUnknown;
}

// What only a command's output would say.
bool is_unknown(const TestWords& words) {
  for (const TestWord& word : words) {
    if (word.text.find("$(") != std::string::npos) return true;
  }
  return false;
}

// Between two of && and ||. A lone word is true where it is not empty, and -n is a lone word where
// nothing follows it.
ShellTruth one_test(TestWords words, int64_t& letters) {
  bool wanted = true;
  const bool brackets = !words.empty() && is_bracket(words[0].text);
  const bool in_test = brackets && words[0].text != "[[";
  std::erase_if(words, [&](const TestWord& word) {
    return !word.quoted && (is_bracket(word.text) || (word.text.empty() && in_test));
  });
  if (!brackets) return kUnknown;  // a command
  size_t signs = 0;
  for (; signs + 1 < words.size() && words[signs].text == "!"; ++signs) wanted = !wanted;
  words.erase(words.begin(), words.begin() + static_cast<int64_t>(signs));
  ShellTruth value = kUnknown;
  if (words.size() < 3) {
    // What nobody gives is empty, as for a shell: a script's own default may follow.
    for (TestWord& word : words) {
      if (is_shell_variable(word.text)) word.text.clear();
    }
  }
  const bool waits =
      std::ranges::any_of(words, [](const TestWord& word) { return is_open_text(word.text); });
  if (is_unknown(words)) {
    value = kUnknown;
  } else if (words.empty()) {
    value = {false, true};
  } else if (words.size() == 1) {
    value = {!words[0].text.empty(), true};
  } else if (words.size() == 2 && (words[0].text == "-n" || words[0].text == "-z")) {
    value = {words[1].text.empty() == (words[0].text == "-z"), true};
  } else if (words.size() == 3) {
    value = compared(words[0].text, words[1].text, words[2], !in_test, letters);
  }
  return {value.holds == wanted, value.known, waits};
}

}  // namespace

bool is_open_text(std::string_view text) {
  for (size_t at = text.find('$'); at != std::string_view::npos; at = text.find('$', at + 1)) {
    const std::string_view next = text.substr(at + 1);
    if (next.starts_with('{') || next.starts_with("((")) return true;
    if (!next.empty() && is_shell_name(next[0])) return true;
  }
  return false;
}

ShellTruth shell_test(const std::vector<TestWord>& words, int64_t& letters) {
  ShellTruth value;
  bool also = true;  // what joins the next part: &&, else ||
  TestWords part;
  std::string bracket;
  const auto join = [&] {
    // Inside [[ ]] each part is a test by itself.
    if (!bracket.empty() && (part.empty() || !is_bracket(part[0].text))) {
      part.insert(part.begin(), {bracket, false});
    }
    const ShellTruth next = one_test(part, letters);
    part.clear();
    const bool decided = value.known && value.holds != also;
    if (decided) return;
    const bool decides = next.known && next.holds != also;
    value = {also ? value.holds && next.holds : value.holds || next.holds,
             decides || (value.known && next.known), value.waits || next.waits};
  };
  for (const TestWord& word : words) {
    if (!word.quoted && word.text == "[[") bracket = "[[";
    const bool both = word.text == "&&" || word.text == "-a";
    const bool either = word.text == "||" || word.text == "-o";
    if (!word.quoted && (both || either)) {
      if (word.text[0] == '-') bracket = "[";
      join();
      also = both;
    } else {
      part.push_back(word);
    }
  }
  join();
  return value;
}

}  // namespace troupe
