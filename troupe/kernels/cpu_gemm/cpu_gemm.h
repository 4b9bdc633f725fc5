// A matrix product on one CPU thread, made for experts: rows may be gathered on the way in.
//
//   c[i, j] = [c[i, j] +] sum_p a[i, p] b[p, j]        i < M, j < N, p < K; f32
//
// An operand is a row-major matrix, used transposed where `t`. With `rows`, its stored row r is row
// rows[r] of `data`; nothing is copied beforehand. c is dense in j, its rows `ldc` apart.
//
// The sum runs over blocks of p, each summed in order by fused multiply-adds and then added to c.
// The blocks depend on K alone, so the bits of c[i, j] depend on row i of a and column j of b, and
// on nothing else: not on M, N, other rows, or how a product is cut into several. A NaN stays in
// its row and column. Without `add`, c is overwritten whatever it held; K = 0 writes zeros; M or N
// = 0 does nothing. c overlaps no operand.
//
// There is no CUDA path: this is the CPU's own.
#pragma once

#include <cstdint>

namespace troupe {

struct GemmOperand {
  const float* data = nullptr;
  int64_t ld;                     // from one stored row to the next
  bool t = false;                 // a is stored [K, M], or b [N, K]
  const int32_t* rows = nullptr;  // of the stored matrix, as many as it has rows
};

struct CpuGemm {
  int64_t m, n, k;
  GemmOperand a, b;
  float* c = nullptr;
  int64_t ldc;
  bool add = false;
};

void validate(const CpuGemm& args);  // throws on a broken contract; every path calls it
int64_t flops(const CpuGemm& args);
constexpr int64_t kCpuGemmScratch = 176 * 1024;  // floats, anywhere, one piece a thread

void cpu_gemm_ref(const CpuGemm& args);  // plain loops, in double
void cpu_gemm_cpu(const CpuGemm& args, float* scratch);

}  // namespace troupe
