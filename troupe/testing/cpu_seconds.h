// For tests that bound the work of a call: processor time does not see the machine's other work, as
// a wall clock does, and checked memory accesses take several times as long.
#pragma once

#include <ctime>

#include "troupe/testing/sanitized.h"

namespace troupe {

// Since the process began, of all its threads; under the sanitizers a tenth of that.
inline double cpu_seconds() {
  constexpr double kSlowdown = unless_sanitized(1.0, 10.0);
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC / kSlowdown;
}

}  // namespace troupe
