// What a letter of a script is.
#pragma once

#include <algorithm>
#include <cctype>
#include <string_view>

namespace troupe {

inline bool is_shell_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}
// A letter of a variable's name.
inline bool is_shell_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
// A blank that separates the words of a line.
inline bool is_shell_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}
// A character that ends a word and is not part of it.
inline bool is_shell_separator(char c) {
  return c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')';
}

// "$4", "${LR}": a word that is one variable and nothing else.
inline bool is_shell_variable(std::string_view word) {
  if (!word.starts_with('$')) return false;
  word.remove_prefix(1);
  if (word.starts_with('{') && word.ends_with('}')) word = word.substr(1, word.size() - 2);
  return !word.empty() && std::ranges::all_of(word, is_shell_name);
}

// The same, or a list's words: "${ARGS[@]}", "$@".
inline bool is_shell_list(std::string_view word) {
  if (word == "$@" || word == "$*") return true;
  if (word.starts_with("${") && (word.ends_with("[@]}") || word.ends_with("[*]}"))) {
    word = word.substr(0, word.size() - 4);
    word.remove_prefix(2);
    return !word.empty() && std::ranges::all_of(word, is_shell_name);
  }
  return is_shell_variable(word);
}

}  // namespace troupe
