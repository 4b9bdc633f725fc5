// wgmma of 8-bit operands (e4m3): D[64, 128] = A[64, 32] B[32, 128] or D += that. A in shared
// memory or registers, B in shared memory, both K-major: 8-bit wgmma takes nothing else. fp32
// accumulators in registers of one warpgroup.
#pragma once

#include "troupe/kernels/device/wgmma.cuh"

namespace troupe::sm90 {

// The lower half of the descriptor of an operand tile of 128 k at a 1024-byte aligned address, and
// the upper one, the same for all: registers are short, and 64-bit sums take twice as many.
__device__ inline uint32_t operand_fp8(uint32_t address) {
  return (address & 0x3ffff) >> 4 | 1 << 16;
}
constexpr uint32_t kOperandHigh =
    0x40000040;  // 1024 bytes from 8 rows to the next 8; 128-byte swizzle

// What to add to it to come to the next 32 of k, and to the next 128 rows of B.
constexpr uint32_t kNextK32 = 32 >> 4;
constexpr uint32_t kNextHalf = 128 * 128 >> 4;

using HalfAccumulator = float[64];

// A's 64 rows x 32 k of a warpgroup in registers; lane l of warp w has rows 16 w + l / 4 (0 and 2)
// and that + 8 (1 and 3), k = 4 (l % 4) .. + 3 (0 and 1) and that + 16 (2 and 3).
using RegisterA = uint32_t[4];

#define TROUPE_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TROUPE_ACC16(d, i) \
  TROUPE_ACC4(d, i), TROUPE_ACC4(d, i + 4), TROUPE_ACC4(d, i + 8), TROUPE_ACC4(d, i + 12)
#define TROUPE_ACC64(d) \
  TROUPE_ACC16(d, 0), TROUPE_ACC16(d, 16), TROUPE_ACC16(d, 32), TROUPE_ACC16(d, 48)

__device__ inline void wgmma_fp8(HalfAccumulator& d, uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\n"
      "mov.b64 a, {%64, %67};\nmov.b64 b, {%65, %67};\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, a, b, p, 1, 1;\n}\n"
      : TROUPE_ACC64(d)
      : "r"(a), "r"(b), "r"(int{accumulate}), "r"(kOperandHigh));
}

__device__ inline void wgmma_fp8(HalfAccumulator& d, const RegisterA& a, uint32_t b,
                                 bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %69, 0;\nmov.b64 b, {%68, %70};\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, b, p, 1, 1;\n}\n"
      : TROUPE_ACC64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(int{accumulate}),
        "r"(kOperandHigh));
}

#undef TROUPE_ACC4
#undef TROUPE_ACC16
#undef TROUPE_ACC64

// Keeps the compiler from moving reads of the accumulators above the wait.
__device__ inline void settle(HalfAccumulator& d) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Four 8x8 matrices of 16-bit values, transposed; lane i names the address of row i % 8 of matrix
// i / 8. Lane l gets rows 2 (l % 4) and the next of column l / 4, of each matrix.
__device__ inline uint4 load_matrices_transposed(uint32_t address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Loads of shared memory that stay where they are written: under the products before them.
__device__ inline float load_shared4(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline float2 load_shared8(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// A load that stays where it is written: ahead of a wait, so that its latency is hidden there.
__device__ inline float load_early(const float* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ inline int load_early(const int32_t* p) {
  int v;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

}  // namespace troupe::sm90
