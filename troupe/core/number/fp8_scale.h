// The rule for a group of numbers that share a scale in 8 bits (kernels/fp8/fp8.h), as the CPU and
// the CUDA path share it.
#pragma once

#include <bit>
#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/core/number/e4m3.h"

namespace troupe {

struct Fp8Scale {
  float scale;
  float inverse;  // exact; NaN for a group that is not finite, which makes each byte 0x7f
};

// |x| in the order of bits, in which infinity and NaN are the largest.
TROUPE_INLINE uint32_t magnitude(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
}

// `top` is max |x| by the order of bits, in which infinity and NaN are the largest. 448 is 1.75
// 2^8: the exponent is top's less 8, and one more where the mantissa is above 1.75's.
TROUPE_INLINE Fp8Scale fp8_scale(uint32_t top) {
  constexpr uint32_t kInf = 0x7f800000u, kMantissa = 0x7fffffu;
  constexpr int32_t kLeast = 1, kMost = 120 + 127, kOne = 127;
  const int32_t wanted = static_cast<int32_t>(top >> 23) - 8 + ((top & kMantissa) > 0x600000u);
  const int32_t bounded = wanted < kLeast ? kLeast : wanted > kMost ? kMost : wanted;
  const int32_t exponent = top == 0 ? kOne : bounded;
  const uint32_t nan = top >= kInf ? 0x7fc00000u : 0u;
  const auto scale = std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23 | nan);
  const auto inverse = std::bit_cast<float>(static_cast<uint32_t>(2 * kOne - exponent) << 23 | nan);
  return {scale, inverse};
}

// The byte of x. A NaN's sign is dropped: every byte of a group that is not finite is 0x7f.
TROUPE_INLINE uint32_t fp8_byte(float x, const Fp8Scale& s) {
  const uint32_t byte = E4M3::round(x * s.inverse);
  return (byte & 0x7fu) == 0x7fu ? 0x7fu : byte;
}

}  // namespace troupe
