// This machine's name, as the system has it.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace troupe {

inline std::string host_name(const char* unknown = "?") {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : unknown;
}

}  // namespace troupe
