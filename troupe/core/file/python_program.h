// The interpreter that the program's own Python scripts run in.
#pragma once

#include <cstdlib>
#include <string>

namespace troupe {

// TROUPE_PYTHON, or python3.
inline std::string python_program() {
  const char* named = std::getenv("TROUPE_PYTHON");  // NOLINT(concurrency-mt-unsafe)
  return named && *named ? named : "python3";
}

}  // namespace troupe
