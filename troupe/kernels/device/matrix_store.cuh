// From accumulator fragments to rows in memory. A fragment of m64nNk16: lane l of warp w holds rows
// 16 w + l / 4 and that + 8, columns 8 j + 2 (l % 4) and the next, for j = 0 .. N / 8 - 1.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace troupe::sm90 {

// Four 8x8 matrices of 16-bit values; lane i names the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                      uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same, each matrix transposed.
__device__ inline void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b,
                                                 uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

__device__ inline uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ inline void store_shared16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// Two floats rounded to bf16; `low` is in the lower half, that is at the lower address.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline float low_bf16(uint32_t packed) {
  return __uint_as_float(packed << 16);
}
__device__ inline float high_bf16(uint32_t packed) {
  return __uint_as_float(packed & 0xffff0000u);
}

}  // namespace troupe::sm90
