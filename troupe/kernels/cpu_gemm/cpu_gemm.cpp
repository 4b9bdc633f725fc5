#include "troupe/kernels/cpu_gemm/cpu_gemm.h"

#include <string_view>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

void check_operand(const GemmOperand& x, int64_t rows, int64_t cols, std::string_view name) {
  if (rows == 0 || cols == 0) return;
  TROUPE_CHECK(x.data != nullptr, name, "is null");
  TROUPE_CHECK(x.ld >= cols, name, "has rows", x.ld, "apart, but", cols, "columns");
}

float at(const GemmOperand& x, int64_t r, int64_t c) {
  if (x.t) std::swap(r, c);
  return x.data[(x.rows == nullptr ? r : x.rows[r]) * x.ld + c];
}

}  // namespace

void validate(const CpuGemm& args) {
  const auto& [m, n, k, a, b, c, ldc, add] = args;
  TROUPE_CHECK(m >= 0 && n >= 0 && k >= 0, "m", m, "n", n, "k", k);
  check_operand(a, a.t ? k : m, a.t ? m : k, "a");
  check_operand(b, b.t ? n : k, b.t ? k : n, "b");
  if (m == 0 || n == 0) return;
  TROUPE_CHECK(c != nullptr, "c is null");
  TROUPE_CHECK(ldc >= n, "c has rows", ldc, "apart, but", n, "columns");
}

int64_t flops(const CpuGemm& args) {
  return 2 * args.m * args.n * args.k;
}

void cpu_gemm_ref(const CpuGemm& args) {
  validate(args);
  for (int64_t i = 0; i < args.m; ++i) {
    for (int64_t j = 0; j < args.n; ++j) {
      float& c = args.c[i * args.ldc + j];
      double sum = args.add ? c : 0;
      for (int64_t p = 0; p < args.k; ++p) {
        sum += static_cast<double>(at(args.a, i, p)) * at(args.b, p, j);
      }
      c = static_cast<float>(sum);
    }
  }
}

}  // namespace troupe
