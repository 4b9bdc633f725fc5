// What a letter of a script is.
#pragma once

#include <cctype>

namespace troupe {

inline bool is_shell_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}
// Of a variable's name.
inline bool is_shell_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

}  // namespace troupe
