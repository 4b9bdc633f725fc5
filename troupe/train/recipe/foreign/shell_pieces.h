// The pieces of a script's text: where a quote, a bracket or an assignment's name ends.
#pragma once

#include <cstddef>
#include <string>

namespace troupe {

constexpr int kDeepestShell = 100;  // commands within commands, and brackets within brackets

// The end of what begins at `at` in text, one behind it: a quote, a backslash, $(...), ${...},
// `...`, or one character. The end of the text where it is not closed.
size_t shell_piece_end(const std::string& text, size_t at);

// One behind the bracket that closes the one at `at`, ( or {.
size_t shell_bracket_end(const std::string& text, size_t at);

// "NAME", "NAME[index]" before "=" or "+=": where the sign stands; npos: the word assigns nothing.
size_t shell_assignment(const std::string& word);

}  // namespace troupe
