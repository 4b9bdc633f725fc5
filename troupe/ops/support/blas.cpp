#include "troupe/ops/support/blas.h"

#include <algorithm>

#include "troupe/core/check.h"

extern "C" {
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
}

namespace troupe {
namespace {

// Fortran reads columns first: it sees each operand transposed and c^T = b^T a^T.
void blas(const Gemm<double>& g) {
  const auto& [m, n, k, a, b, c, ldc, add] = g;
  const int mi = static_cast<int>(m), ni = static_cast<int>(n), ki = static_cast<int>(k);
  const int lda = static_cast<int>(a.ld), ldb = static_cast<int>(b.ld),
            ldci = static_cast<int>(ldc);
  const char ta = a.t ? 'T' : 'N', tb = b.t ? 'T' : 'N';
  const double one = 1, beta = add ? 1 : 0;
  dgemm_(&tb, &ta, &ni, &mi, &ki, &one, b.data, &ldb, a.data, &lda, &beta, c, &ldci);
}

// The part of a product that stored rows [r, r + s) of one operand take part in.
Gemm<double> part_of(const Gemm<double>& g, bool of_a, int64_t r, int64_t s) {
  Gemm<double> part = g;
  if (of_a && !g.a.t) {
    part.m = s;
    part.c += r * g.ldc;
  } else if (!of_a && g.b.t) {
    part.n = s;
    part.c += r;
  } else {  // Rows are terms of the sum.
    part.k = s;
    part.add = g.add || r > 0;
    Operand<double>& other = of_a ? part.b : part.a;
    other.data += r * (of_a != other.t ? other.ld : 1);
  }
  return part;
}

// BLAS takes no list of rows: as many as the scratch holds are copied at a time.
void gather_and_multiply(const Gemm<double>& g, double* scratch) {
  const bool of_a = g.a.rows != nullptr;
  TROUPE_CHECK(!of_a || g.b.rows == nullptr, "both operands of a product have lists of rows");
  const Operand<double>& from = of_a ? g.a : g.b;
  const int64_t a_rows = g.a.t ? g.k : g.m, b_rows = g.b.t ? g.n : g.k;
  const int64_t rows = of_a ? a_rows : b_rows,
                cols = of_a ? g.m + g.k - a_rows : g.n + g.k - b_rows;
  const int64_t step = std::max<int64_t>(1, kGemmScratch / cols);
  TROUPE_CHECK(cols <= kGemmScratch, "a gathered row of", cols, "elements is over", kGemmScratch);
  for (int64_t r = 0; r < rows; r += step) {
    const int64_t s = std::min(step, rows - r);
    for (int64_t i = 0; i < s; ++i) {
      std::copy_n(from.data + from.rows[r + i] * from.ld, cols, scratch + i * cols);
    }
    Gemm<double> part = part_of(g, of_a, r, s);
    (of_a ? part.a : part.b) = {scratch, cols, from.t};
    blas(part);
  }
}

GemmOperand as_ours(const Operand<float>& x) {
  return {x.data, x.ld, x.t, x.rows};
}

}  // namespace

template <>
void gemm(const Gemm<float>& g, float* scratch) {
  cpu_gemm_cpu({g.m, g.n, g.k, as_ours(g.a), as_ours(g.b), g.c, g.ldc, g.add}, scratch);
}

template <>
void gemm(const Gemm<double>& g, double* scratch) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) {
    for (int64_t i = 0; !g.add && i < g.m; ++i) std::fill_n(g.c + i * g.ldc, g.n, 0.0);
    return;
  }
  if (g.a.rows != nullptr || g.b.rows != nullptr) return gather_and_multiply(g, scratch);
  blas(g);
}

}  // namespace troupe
