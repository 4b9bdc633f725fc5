#include "troupe/train/recipe/foreign/shell_condition.h"

#include <cstdint>

#include "troupe/core/text/text.h"

namespace troupe {
namespace {

using TestWords = std::vector<TestWord>;

bool is_bracket(const std::string& text) {
  return text == "[" || text == "]" || text == "[[" || text == "]]" || text == "test";
}

std::optional<bool> compared(const std::string& left, const std::string& op,
                             const std::string& right) {
  if (op == "=" || op == "==" || op == "!=") {
    if (right.find_first_of("*?") != std::string::npos) return std::nullopt;  // a pattern
    return (left == right) == (op != "!=");
  }
  int64_t a = 0, b = 0;
  if (!from_text(left, a) || !from_text(right, b)) return std::nullopt;
  if (op == "-eq") return a == b;
  if (op == "-ne") return a != b;
  if (op == "-lt") return a < b;
  if (op == "-le") return a <= b;
  if (op == "-gt") return a > b;
  if (op == "-ge") return a >= b;
  return std::nullopt;
}

// Between two of && and ||. A lone word is true where it is not empty, and -n is a lone word where
// nothing follows it.
std::optional<bool> one_test(TestWords words) {
  bool wanted = true;
  const bool brackets = !words.empty() && is_bracket(words[0].text);
  const bool in_test = brackets && words[0].text != "[[";
  std::erase_if(words, [&](const TestWord& word) {
    return !word.quoted && (is_bracket(word.text) || (word.text.empty() && in_test));
  });
  if (!brackets) return std::nullopt;  // a command
  for (; !words.empty() && words[0].text == "!" && words.size() > 1; words.erase(words.begin())) {
    wanted = !wanted;
  }
  std::optional<bool> value;
  if (words.empty()) {
    value = false;
  } else if (words.size() == 1) {
    value = !words[0].text.empty();
  } else if (words.size() == 2 && (words[0].text == "-n" || words[0].text == "-z")) {
    value = words[1].text.empty() == (words[0].text == "-z");
  } else if (words.size() == 3) {
    value = compared(words[0].text, words[1].text, words[2].text);
  }
  return value ? std::optional(*value == wanted) : std::nullopt;
}

}  // namespace

std::optional<bool> shell_test(const std::vector<TestWord>& words) {
  std::optional<bool> value = true;
  bool also = true;  // what joins the next part: &&, else ||
  TestWords part;
  std::string bracket;
  const auto join = [&] {
    // Inside [[ ]] each part is a test by itself.
    if (!bracket.empty() && (part.empty() || !is_bracket(part[0].text))) {
      part.insert(part.begin(), {bracket, false});
    }
    const std::optional<bool> next = one_test(part);
    part.clear();
    if (!next || !value) {
      value.reset();
    } else {
      value = also ? *value && *next : *value || *next;
    }
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
