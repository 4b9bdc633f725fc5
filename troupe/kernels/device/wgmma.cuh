// The tensor cores' asynchronous product (wgmma): D[64, 256] += A[64, 16] B[16, 256], bf16 or f16
// operands in shared memory with 128-byte swizzle, fp32 accumulators in registers of one warpgroup.
#pragma once

#include <cstdint>

namespace troupe::sm90 {

// How shared memory holds an operand. K-major: rows of kK k values (64 or 128 swizzled bytes),
// row after row. MN-major: slabs of 64 m (or n) values (128 swizzled bytes) a row, kK rows of k.
enum class Major { kK = 0, kMN = 1 };

// The descriptor of an operand tile of kK (32 or 64) k values at a 1024-byte aligned address. The
// stride is from 8 rows to the next 8; the leading one, for MN-major, from slab to slab.
template <int kK>
__device__ inline uint64_t operand(uint32_t address, Major major) {
  const bool wide = major == Major::kMN || kK == 64;
  const uint64_t leading = major == Major::kMN ? kK * 128 >> 4 : 1;
  const uint64_t stride = (wide ? 1024 : 512) >> 4, swizzle = wide ? 1 : 2;
  return (address & 0x3ffff) >> 4 | leading << 16 | stride << 32 | swizzle << 62;
}

// What to add to a descriptor to come to the next 16 of k.
constexpr uint64_t next_k16(Major major) {
  return (major == Major::kMN ? 16 * 128 : 32) >> 4;
}

using Accumulator = float[128];

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kInFlight>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}

// Keeps the compiler from moving reads of the accumulators above the wait.
__device__ inline void settle(Accumulator& d) {
#pragma unroll
  for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define TROUPE_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TROUPE_ACC16(d, i) \
  TROUPE_ACC4(d, i), TROUPE_ACC4(d, i + 4), TROUPE_ACC4(d, i + 8), TROUPE_ACC4(d, i + 12)
#define TROUPE_ACC64(d, i) \
  TROUPE_ACC16(d, i), TROUPE_ACC16(d, i + 16), TROUPE_ACC16(d, i + 32), TROUPE_ACC16(d, i + 48)

enum class Half16 { kBF16, kF16 };

#define TROUPE_WGMMA(TYPE)                                                                         \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                                \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127"                                                                                       \
      "}, %128, %129, p, 1, 1, %131, %132;\n}\n"                                                   \
      : TROUPE_ACC64(d, 0), TROUPE_ACC64(d, 64)                                                    \
      : "l"(a), "l"(b), "r"(int{accumulate}), "n"(static_cast<int>(kA)),                           \
        "n"(static_cast<int>(kB)))

// D = A B, or D += A B where `accumulate`.
template <Major kA, Major kB, Half16 kType = Half16::kBF16>
__device__ inline void wgmma(Accumulator& d, uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kType == Half16::kBF16) {
    TROUPE_WGMMA("bf16");
  } else {
    TROUPE_WGMMA("f16");
  }
}

#undef TROUPE_WGMMA
#undef TROUPE_ACC4
#undef TROUPE_ACC16
#undef TROUPE_ACC64

}  // namespace troupe::sm90
