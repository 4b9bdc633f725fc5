// Values that would do, for messages about one that does not.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

// "; near: 4, 8": the divisors of `whole` (positive) below and above a number that is none. Takes
// as long as the root of `whole` is large; beyond 2^48 it says nothing.
inline std::string near_divisors(int64_t whole, int64_t number) {
  if (whole < 1 || whole >> 48 != 0) return "";
  int64_t below = 0, above = 0;  // the largest up to `number`, the smallest above it
  const auto look_at = [&](int64_t divisor) {
    if (divisor <= number && divisor > below) below = divisor;
    if (divisor > number && (above == 0 || divisor < above)) above = divisor;
  };
  for (int64_t n = 1; n <= whole / n; ++n) {
    if (whole % n != 0) continue;
    look_at(n);
    look_at(whole / n);
  }
  std::string out = "; near: ";
  if (below > 0) out += std::to_string(below);
  if (above > 0) out += (below > 0 ? ", " : "") + std::to_string(above);
  return out;
}

}  // namespace troupe
