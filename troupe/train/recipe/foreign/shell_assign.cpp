#include "troupe/train/recipe/foreign/shell_assign.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "troupe/train/recipe/foreign/shell_pieces.h"

namespace troupe {

void ShellAssign::assign(const ShellToken& token) {
  const size_t sign = shell_assignment(token.text);
  std::string name = token.text.substr(0, sign);
  const ShellToken value{token.text.substr(sign + 1), token.line};
  const bool more = name.ends_with('+');
  if (more) name.pop_back();
  scope_.line = token.line;
  if (name.ends_with(']')) {
    const size_t bracket = name.find('[');
    const std::string key =
        expand_.text({name.substr(bracket + 1, name.size() - bracket - 2), token.line});
    return scope_.set_element(name.substr(0, bracket), key, {expand_.text(value), token.line},
                              more);
  }
  if (!value.text.starts_with('(')) {
    return scope_.set(name, {{expand_.text(value), token.line}}, more);
  }
  assign_array(name, value, more);
}

void ShellAssign::assign_array(const std::string& name, const ShellToken& value, bool more) {
  scope_.add_array(name);
  const std::string inside =
      value.text.substr(1, value.text.size() - 1 - value.text.ends_with(')'));
  ShellScope::Words words;
  for (const ShellToken& item : shell_array_words(inside, file_, value.line)) {
    const size_t end = item.text.starts_with('[') ? item.text.find("]=") : std::string::npos;
    if (end == std::string::npos) {
      ShellScope::Words more_words = expand_.words(item);
      std::move(more_words.begin(), more_words.end(), std::back_inserter(words));
    } else {
      scope_.set_element(name, expand_.text({item.text.substr(1, end - 1), item.line}),
                         {expand_.text({item.text.substr(end + 2), item.line}), item.line}, false);
    }
  }
  if (!scope_.is_keyed(name)) scope_.set(name, std::move(words), more);
}

bool ShellAssign::declares(std::string_view command) {
  constexpr std::array<std::string_view, 5> kNames = {"export", "local", "declare", "typeset",
                                                      "readonly"};
  return std::find(kNames.begin(), kNames.end(), command) != kNames.end();
}

void ShellAssign::declare(const std::vector<ShellToken>& tokens) {
  bool keyed = false;
  for (size_t i = 1; i < tokens.size(); ++i) {
    ShellToken token = tokens[i];
    const bool option = token.text.starts_with('-');
    keyed |= option && token.text.find('A') != std::string::npos;
    if (option) continue;
    // export "${KEY}"="${VALUE}"
    if (shell_assignment(token.text) == std::string::npos) {
      token.text = expand_.text(token);
      const size_t sign = shell_assignment(token.text);
      if (sign != std::string::npos) {
        scope_.set(token.text.substr(0, sign), {{token.text.substr(sign + 1), token.line}}, false);
        continue;
      }
    }
    const size_t sign = shell_assignment(token.text);
    const std::string name = token.text.substr(0, token.text.find_first_of("+=["));
    if (tokens[0].text == "local") scope_.keep_local(name);
    if (keyed) scope_.declare_keyed(name);
    if (sign != std::string::npos) assign(token);
  }
}

}  // namespace troupe
