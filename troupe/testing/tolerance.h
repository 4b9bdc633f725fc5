// How close is close: the one table of tolerances, rule G8 of the specification. Indices, counts,
// orders and maps have no tolerance: they are exact.
#pragma once

#include <algorithm>
#include <cmath>

#include "troupe/core/number/dtype.h"

namespace troupe::testing {

struct Tolerance {
  double rtol;
  double atol;
};

constexpr Tolerance tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return {1e-9, 1e-9};
    case Dtype::kF32: return {1e-6, 1e-6};
    default: return {1.6e-2, 1e-5};
  }
}

// `scale` is the size of what was summed: a small sum of large terms is no better than its terms.
// NaN is close to nothing; infinities must be equal.
inline bool close(double got, double want, Tolerance t, double scale = 0) {
  if (got == want) return true;
  return std::abs(got - want) <= t.atol + t.rtol * std::max(std::abs(want), scale);
}

}  // namespace troupe::testing
