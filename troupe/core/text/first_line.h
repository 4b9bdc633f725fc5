// Of what another library says: call stacks may stand behind it.
#pragma once

#include <string>

namespace troupe {

inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace troupe
