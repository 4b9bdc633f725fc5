// Rule Q2 for one group, as the CPU and the CUDA path share it: without branches, in float alone.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "troupe/core/host_device.h"
#include "troupe/core/number/f16.h"

namespace troupe {

struct QuantScale {
  F16 stored;
  float scale;  // the same as a float; NaN for a group that cannot be stored
  bool saturated;
};

// `largest` is max |x|, or NaN where an element is NaN or infinite.
TROUPE_INLINE QuantScale quant_scale(float largest, float qmax) {
  constexpr float kLargest = 65504;
  if (!(largest <= std::numeric_limits<float>::max())) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return {F16(nan), nan, false};
  }
  const float quotient = largest / qmax;
  F16 h(quotient < kLargest ? quotient : kLargest);
  // scale qmax has 11 + 7 bits: the comparison is exact, and says whether rounding went down.
  if (static_cast<float>(h) * qmax < largest && h.bits < 0x7bff) ++h.bits;
  const float scale = static_cast<float>(h);
  return {h, scale, scale * qmax < largest};
}

// x / scale to the nearest integer, ties to even. The float quotient t may round onto a tie that
// the true one is beside; t scale has few bits, so x - t scale is exact and says on which side.
TROUPE_INLINE float quantized(float x, float scale, float qmax) {
  constexpr float kRound = 0x1.8p23f;  // Added to a small number, it leaves the nearest integer.
  const float t = x / scale;
  const float bounded = t > qmax ? qmax : t < -qmax ? -qmax : t;
  const float q = (bounded + kRound) - kRound;
  const float side = std::fma(-bounded, scale, x);
  const float away = bounded - q;  // +-0.5 on a tie; 2 away leads from q to the tie's other side.
  const bool wrong = (std::abs(away) == 0.5f) & (away * side > 0);
  const float nearest = wrong ? q + 2 * away : q;
  return scale > 0 ? nearest : 0.0f;  // Scale 0 or NaN: 0.
}

}  // namespace troupe
