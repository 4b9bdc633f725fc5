// An f32 in two halves of 16 bits: the bf16 that it rounds to, and the rest. So a master weight
// costs two bytes beside the bf16 value that a model computes with.
//
//   bits of f = upper 2^16 + low
//   value     = upper + (low >> 15)      split; modulo 2^16
//   upper     = value - (low >> 15)      join
//
// `value` is f to nearest, a tie away from zero (BF16 rounds ties to even; there is no other
// difference): above the largest bf16 it is infinite, and join gives back the finite f. Every f
// comes back to the bit, infinities and both zeros too, except a NaN: it comes back as a NaN with
// its upper bits and low = 0. A bf16 alone is the f32 of the same value with low = 0.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "troupe/core/host_device.h"
#include "troupe/core/number/bf16.h"

namespace troupe {

struct SplitF32 {
  uint16_t value;  // bits of a BF16
  uint16_t low;
};

TROUPE_INLINE SplitF32 split_f32(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // A NaN keeps a set mantissa bit: its own may all be among the low ones.
  const uint32_t value = is_nan ? (bits >> 16) | 0x0040u : (bits + 0x8000u) >> 16;
  return {static_cast<uint16_t>(value), static_cast<uint16_t>(is_nan ? 0u : bits)};
}

TROUPE_INLINE float join_f32(uint16_t value, uint16_t low) {
  const uint32_t upper = uint32_t{value} - (uint32_t{low} >> 15);
  return std::bit_cast<float>((upper << 16) | low);
}

// All of one size.
void split_f32(std::span<const float> from, BF16* value, uint16_t* low);
void join_f32(const BF16* value, const uint16_t* low, std::span<float> to);

}  // namespace troupe
