// A command that a message shows, so that it can be copied into a shell.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

// `text` as one word of a POSIX shell: as it is where no character means anything there, else in
// single quotes: "a b" becomes 'a b', "it's" becomes 'it'\''s'.
inline std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  // Not "=ls", which zsh takes for a program's path.
  const bool plain = !text.empty() && text.front() != '=' &&
                     text.find_first_not_of(kPlain) == std::string_view::npos;
  if (plain) return std::string(text);
  std::string out = "'";
  for (const char c : text) c == '\'' ? out += "'\\''" : out += c;
  return out + '\'';
}

}  // namespace troupe
