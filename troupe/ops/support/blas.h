// Matrix products on raw memory, one task on the calling thread: tasks are shared out by us. Two
// threads with a product each do more than one product over two threads (moe_ffn_bench).
//
//   c [m, n] = a b + (add ? c : 0)      a is [m, k] and b is [k, n] after their transposes
//
// f32 goes through kernels/cpu_gemm, whose bits of a row depend on nothing but that row; f64
// through PyTorch's BLAS (MKL in the x86-64 wheel), which promises no such thing.
#pragma once

#include <cstdint>

#include "troupe/kernels/cpu_gemm/cpu_gemm.h"

namespace troupe {

// A row-major operand: rows x cols as stored, used transposed if `t`. With `rows`, its stored row r
// is row rows[r] of `data`.
template <class T>
struct Operand {
  const T* data;
  int64_t ld;
  bool t = false;
  const int32_t* rows = nullptr;
};

// Without `add`, c is overwritten whatever it held (NaN included). k = 0 is allowed; m or n = 0
// does nothing. One of the operands at most has `rows`.
template <class T>
struct Gemm {
  int64_t m, n, k;
  Operand<T> a, b;
  T* c;
  int64_t ldc;
  bool add = false;
};

constexpr int64_t kGemmScratch = kCpuGemmScratch;  // numbers, one piece a thread

template <class T>  // float or double
void gemm(const Gemm<T>& g, T* scratch);

}  // namespace troupe
