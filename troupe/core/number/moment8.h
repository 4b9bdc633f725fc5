// An optimizer's moments in 8 bits: floats of 3 mantissa bits, whose exponents count down from the
// largest number of their block of 256.
//
//   scale = the least power of two that is not below max |x| of the block; all 0: 0
//   y     = |x| / scale, from 0 to 1 (exact)
//   code  = (the bits of the f32 y + dither) / 2^20 - those of 1 + top, not below 0: 3 bits of the
//           mantissa and an exponent; top 127 (first moments, whose highest bit is the sign) or 255
//   back  : y of that code times scale; code 0 is 0
//
// dither 2^19 rounds to nearest: by 1/16 of a number at most. One that is drawn evenly from 0 to
// below 2^20 rounds up as often as the number is near to what is above: by 1/8 at most, and in the
// mean by nothing, so that small changes add up where rounding to nearest would lose each of them.
// First moments below 2^-15 of the block's scale become 0; second moments reach down to 2^-31, and
// one that is not 0 never becomes 0, as it divides. What was read back is stored again to the bit.
// A block with a number that is not finite, or above 2^126, reads back as NaN, all of it.
#pragma once

#include <bit>
#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe {

inline constexpr int64_t kMomentBlock = 256;
inline constexpr uint32_t kToNearest = 1u << 19;

inline constexpr int64_t moment_blocks(int64_t n) {
  return (n + kMomentBlock - 1) / kMomentBlock;
}

// The scale for the largest bits of |x| in the block: a NaN counts as the largest.
TROUPE_INLINE float moment_scale(uint32_t largest) {
  const uint32_t power = (largest + 0x007fffffu) & 0x7f800000u;
  return std::bit_cast<float>(largest > 0x7e800000u ? 0x7fc00000u : power);  // above 2^126: NaN
}
// 1 / scale, a power of two as well; 0 of 0 and of NaN.
TROUPE_INLINE float moment_inverse(float scale) {
  const auto bits = std::bit_cast<uint32_t>(scale);
  return std::bit_cast<float>(bits == 0 || bits > 0x7e800000u ? 0u : 0x7f000000u - bits);
}

namespace detail {

inline constexpr uint32_t kMomentOne = 0x3f8;  // upper 12 bits of 1.0f

template <uint32_t kTop>
TROUPE_INLINE uint32_t moment_code(float y, uint32_t dither) {
  const uint32_t upper = (std::bit_cast<uint32_t>(y) + dither) >> 20;
  constexpr uint32_t kBelow = kMomentOne - kTop;
  return upper <= kBelow ? 0u : upper >= kMomentOne ? kTop : upper - kBelow;
}
template <uint32_t kTop>
TROUPE_INLINE float moment_of(uint32_t code) {
  return std::bit_cast<float>(code == 0 ? 0u : (code + (kMomentOne - kTop)) << 20);
}

}  // namespace detail

TROUPE_INLINE uint8_t first_moment_code(float x, float inverse, uint32_t dither) {
  const uint32_t sign = (std::bit_cast<uint32_t>(x) >> 24) & 0x80u;
  const float size = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
  const uint32_t code = detail::moment_code<127>(size * inverse, dither);
  return static_cast<uint8_t>(code == 0 ? 0u : sign | code);
}
TROUPE_INLINE float first_moment(uint8_t code, float scale) {
  const float y = detail::moment_of<127>(code & 0x7fu);
  return (code > 127 ? -y : y) * scale;
}

TROUPE_INLINE uint8_t second_moment_code(float x, float inverse, uint32_t dither) {
  const uint32_t code = detail::moment_code<255>(x * inverse, dither);
  return static_cast<uint8_t>(code == 0 && x > 0 ? 1u : code);
}
TROUPE_INLINE float second_moment(uint8_t code, float scale) {
  return detail::moment_of<255>(code) * scale;
}

// Dither for both, out of the bits of the new moments: the same on every layout, for any number of
// threads, and in every run.
struct MomentDither {
  uint32_t first, second;
};
TROUPE_INLINE MomentDither moment_dither(float first, float second) {
  uint32_t h =
      std::bit_cast<uint32_t>(first) * 0x9e3779b1u ^ std::bit_cast<uint32_t>(second) * 0x85ebca77u;
  h = (h ^ h >> 16) * 0x7feb352du;  // two rounds of a mixer of 32 bits
  h = (h ^ h >> 15) * 0x846ca68bu;
  h ^= h >> 16;
  return {h >> 12, (h * 0x9e3779b1u) >> 12};
}

}  // namespace troupe
