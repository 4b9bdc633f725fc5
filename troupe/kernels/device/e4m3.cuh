// Numbers to e4m3 bytes in device code, two at a time.
#pragma once

#include <cstdint>

#include "troupe/core/number/e4m3.h"

namespace troupe {

// The bytes of two numbers, the first in the lower eight bits; to nearest, ties to even. A NaN of
// either sign is 0x7f, as kernels/fp8 has it.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto byte = [](float x) { return x != x ? 0x7fu : E4M3::round(x); };
  return byte(low) | byte(high) << 8;
#endif
}

// Those of four numbers, the first lowest.
__device__ __forceinline__ uint32_t e4m3_four(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t four;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}\n"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
#else
  return e4m3_pair(a, b) | e4m3_pair(c, d) << 16;
#endif
}

}  // namespace troupe
