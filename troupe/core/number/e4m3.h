// The 8-bit float e4m3: sign, 4 exponent bits (bias 7), 3 mantissa bits. The largest number is 448,
// there is no infinity, 0x7f and 0xff are NaN. The same byte as __nv_fp8_e4m3 and
// c10::Float8_e4m3fn.
#pragma once

#include <bit>
#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe {

struct E4M3 {
  E4M3() = default;
  // To nearest, ties to even; what is larger than 448 becomes 448, a NaN stays a NaN.
  TROUPE_HOST_DEVICE explicit E4M3(float value) : bits(static_cast<uint8_t>(round(value))) {}
  TROUPE_HOST_DEVICE explicit operator float() const { return widen(bits); }

  // Without branches, so that loops over it become vector code. Adding 2^14 to a float leaves a
  // multiple of 2^-9, the step of e4m3's subnormals below 2^-6.
  TROUPE_INLINE static uint32_t round(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;  // One instruction, of the same rounding.
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return pair & 0xffu;
#else
    const uint32_t f = std::bit_cast<uint32_t>(value), sign = (f & 0x80000000u) >> 24;
    const uint32_t mag = f & 0x7fffffffu;
    const float shifted = std::bit_cast<float>(mag) + 0x1p14f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x46800000u;
    const uint32_t normal = (mag + 0x7ffffu + ((mag >> 20) & 1) - 0x3c000000u) >> 20;
    const uint32_t finite = mag < 0x3c800000u ? subnormal : mag >= 0x43e00000u ? 0x7eu : normal;
    return sign | (mag > 0x7f800000u ? 0x7fu : finite);
#endif
  }

  TROUPE_INLINE static float widen(uint32_t b) {
    const uint32_t mag = b & 0x7fu, sign = (b & 0x80u) << 24;
    const float subnormal = static_cast<float>(static_cast<int32_t>(mag)) * 0x1p-9f;
    const uint32_t normal = mag == 0x7fu ? 0x7fc00000u : (mag << 20) + 0x3c000000u;
    return std::bit_cast<float>(sign | (mag < 8 ? std::bit_cast<uint32_t>(subnormal) : normal));
  }

  uint8_t bits;
};

}  // namespace troupe
