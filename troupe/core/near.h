// Values that would do, for messages about one that does not.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

// "; near: 4, 8": the divisors of `whole` (positive) below and above a number that is none.
inline std::string near_divisors(int64_t whole, int64_t number) {
  std::string out;
  for (int64_t n = number < whole ? number : whole; n >= 1; --n) {
    if (whole % n != 0) continue;
    out = std::to_string(n);
    break;
  }
  for (int64_t n = number < 1 ? 1 : number + 1; n <= whole; ++n) {
    if (whole % n != 0) continue;
    if (out != std::to_string(n)) out += (out.empty() ? "" : ", ") + std::to_string(n);
    break;
  }
  return "; near: " + out;
}

}  // namespace troupe
