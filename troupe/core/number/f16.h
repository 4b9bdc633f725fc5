// IEEE half precision: the same 16 bits as __half and c10::Half, so views may be cast; a type of
// our own, so that the CPU build needs neither.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe {

struct F16 {
  F16() = default;
  TROUPE_HOST_DEVICE explicit F16(float value) : bits(round(value)) {}
  TROUPE_HOST_DEVICE explicit operator float() const { return widen(bits); }

  uint16_t bits;

 private:
  static constexpr uint32_t kSign = 0x80000000u, kInf = 0x7f800000u;

  // To nearest, ties to even; a NaN stays a NaN. Adding 2^k to a float drops the bits below
  // 2^(k - 23), rounded as wanted: k is chosen so that what stays is what a half can hold.
  TROUPE_HOST_DEVICE static uint16_t round(float value) {
#ifdef __CUDA_ARCH__  // One instruction, of the same rounding.
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(value));
    return h;
#else
    const uint32_t f = std::bit_cast<uint32_t>(value), sign = (f & kSign) >> 16, mag = f & ~kSign;
    if (mag > kInf) return static_cast<uint16_t>(sign | 0x7e00u);
    if (mag >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
    if (mag < 0x38800000u) {  // Below 2^-14: a multiple of 2^-24, the half's last subnormal place.
      const float shifted = std::bit_cast<float>(mag) + 0.5f;
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t even = mag + 0xfffu + ((mag >> 13) & 1);
    return static_cast<uint16_t>(sign | ((even - 0x38000000u) >> 13));
#endif
  }

  TROUPE_HOST_DEVICE static float widen(uint16_t h) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(h));
    return value;
#else
    const uint32_t sign = uint32_t{h & 0x8000u} << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00u) return std::bit_cast<float>(sign | kInf | (mag & 0x3ffu) << 13);
    if (mag >= 0x400u) return std::bit_cast<float>(sign | ((mag << 13) + 0x38000000u));
    const float small = static_cast<float>(mag) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(small));
#endif
  }
};

}  // namespace troupe
