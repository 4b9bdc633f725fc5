// The first line of another library's message; call stacks may follow it.
#pragma once

#include <string>

namespace troupe {

inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace troupe
