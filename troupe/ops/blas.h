// Matrix products on raw memory, single task: PyTorch's own BLAS (MKL in the x86-64 wheel), called
// without a tensor around each operand. Inside a parallel region it runs on the calling thread, so
// tasks can be shared out by us: two threads with a product each reach 186 GFLOP/s where one
// product over two threads reaches 180 at best and 140 at expert sizes (moe_ffn_bench).
#pragma once

#include <cstdint>
#include <type_traits>

extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
}

namespace troupe {

// A row-major operand: rows x cols as stored, used transposed if `t`.
template <class T>
struct Operand {
  const T* data;
  int64_t ld;
  bool t = false;
};

// c [m, n] = a b + beta c, where a is [m, k] and b is [k, n] after their transposes. beta = 0
// overwrites c whatever it held (NaN included). k = 0 is allowed; m or n = 0 does nothing.
template <class T>
struct Gemm {
  int64_t m, n, k;
  Operand<T> a, b;
  T beta;
  T* c;
  int64_t ldc;
};

template <class T>
void gemm(const Gemm<T>& g) {
  const auto& [m, n, k, a, b, beta, c, ldc] = g;
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; beta == T(0) && i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = T(0);
    }
    return;
  }
  // Fortran reads columns first: it sees each operand transposed and c^T = b^T a^T.
  const int mi = static_cast<int>(m), ni = static_cast<int>(n), ki = static_cast<int>(k);
  const int lda = static_cast<int>(a.ld), ldb = static_cast<int>(b.ld),
            ldci = static_cast<int>(ldc);
  const char ta = a.t ? 'T' : 'N', tb = b.t ? 'T' : 'N';
  const T one = 1;
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(&tb, &ta, &ni, &mi, &ki, &one, b.data, &ldb, a.data, &lda, &beta, c, &ldci);
  } else {
    dgemm_(&tb, &ta, &ni, &mi, &ki, &one, b.data, &ldb, a.data, &lda, &beta, c, &ldci);
  }
}

}  // namespace troupe
