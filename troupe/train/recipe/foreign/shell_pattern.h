// A shell's patterns: * ? [a-c] [!a], and \ before a letter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

// Nothing once no `letters` are left: each comparison takes one, and a script's are compared some
// thousand times.
std::optional<bool> shell_matches(std::string_view text, std::string_view pattern,
                                  int64_t& letters);

// As text.find(what, from), in linear time whatever the two are.
size_t shell_find(std::string_view text, std::string_view what, size_t from = 0);

// ${NAME<operation>}: #p ##p %p %%p /p/r //p/r ^ ^^ , ,, :first and :first:length, with the pattern's
// own variables replaced. Nothing for another one, and where no `letters` are left.
std::optional<std::string> shell_operation(const std::string& value, const std::string& operation,
                                           int64_t& letters);

}  // namespace troupe
