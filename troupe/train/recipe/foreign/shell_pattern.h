// A shell's patterns: * ? [a-c] [!a], and \ before a letter.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

// Nothing where the two are longer than any script's: the work is their product.
std::optional<bool> shell_matches(std::string_view text, std::string_view pattern);

// ${NAME<operation>}: #p ##p %p %%p /p/r //p/r ^ ^^ , ,, :first and :first:length, with the pattern's
// own variables replaced. Nothing for another one, and where the value is too long for patterns.
std::optional<std::string> shell_operation(const std::string& value, const std::string& operation);

}  // namespace troupe
