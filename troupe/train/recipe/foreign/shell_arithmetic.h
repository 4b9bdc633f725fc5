// The arithmetic of a shell, $((...)): C's operators on 64 bits, `**`, numbers with 0x, 0 or base#,
// and names for the values of variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace troupe {

struct ShellNames {
  std::function<std::optional<std::string>(const std::string&)> value;  // nothing: not set
  std::function<void(const std::string&, int64_t)> assign;
};

// Nothing where the text is no expression, a name has no value or a divisor is 0.
std::optional<int64_t> shell_arithmetic(const std::string& text, const ShellNames& names);

}  // namespace troupe
