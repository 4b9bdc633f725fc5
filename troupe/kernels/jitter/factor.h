// u of the jitter, one expression for all processors: the same bits everywhere.
#pragma once

#include <cmath>

#include "troupe/core/host_device.h"
#include "troupe/core/number/rng.h"

namespace troupe::jitter_detail {

inline constexpr int64_t kColumns = 4;  // that share a call of the generator

TROUPE_INLINE float factor(uint32_t word, float epsilon) {
  return fmaf(2 * epsilon, static_cast<float>(word >> 8) * 0x1p-24f, 1 - epsilon);
}

}  // namespace troupe::jitter_detail
