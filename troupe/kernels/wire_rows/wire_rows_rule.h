// The rule for one group, as the CPU and the CUDA path share it: without branches.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe {

inline constexpr uint16_t kWireNan = 0xff80;

struct WireScale {
  uint16_t code;
  float inverse;
  uint32_t keep;  // of the bits of q: all, or none where the group is not finite
};

// `top` is max |x| by the order of bits, in which infinity and NaN are the largest.
TROUPE_INLINE WireScale wire_scale(uint32_t top) {
  constexpr uint32_t kInf = 0x7f800000u, kLeast = 0x00800000u;
  const bool finite = top < kInf;
  const float wanted = std::bit_cast<float>(finite ? top : 0) * (1.0f / 127.0f);
  const auto bits = std::bit_cast<uint32_t>(wanted) & ~0x7fffu;
  const uint32_t scale = bits < kLeast ? kLeast : bits;
  const auto code = static_cast<uint16_t>(top == 0 ? 0 : scale >> 15);
  return {finite ? code : kWireNan, 1.0f / std::bit_cast<float>(scale), finite ? ~0u : 0u};
}

// The lowest byte is q: added to 1.5 2^23, a number below 2^22 is rounded to an integer there.
TROUPE_INLINE uint32_t wire_bits(float x, const WireScale& s) {
  return std::bit_cast<uint32_t>(std::fma(x, s.inverse, 0x1.8p23f)) & s.keep;
}

TROUPE_INLINE float wire_scale_of(uint16_t code) {
  return std::bit_cast<float>(uint32_t{code} << 15);
}

}  // namespace troupe
