// Division of counts that rounds up; for a >= 0 and b > 0.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe {

TROUPE_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The least multiple of b that is not below a.
TROUPE_HOST_DEVICE constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace troupe
