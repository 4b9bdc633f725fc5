// What a letter of a script is.
#pragma once

#include <cctype>

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

}  // namespace troupe
