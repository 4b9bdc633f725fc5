// Tolerances of tests by dtype: the one table (rule G8). Indices, counts, orders and maps have
// none: tests compare them exactly.
#pragma once

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

}  // namespace troupe::testing
