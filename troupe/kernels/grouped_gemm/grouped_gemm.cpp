// The contract, and the reference: the header's formulas in double.
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"

#include <algorithm>
#include <limits>

#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

// The device adds up to a tile's size to 32-bit rows and columns.
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max() - 1024;

// Through float, as the types' own conversions are; double stays double.
template <class T>
T rounded(double v) {
  return static_cast<T>(static_cast<Wide<T>>(v));
}
template <class T>
double wide(T v) {
  return static_cast<Wide<T>>(v);
}

void check_view(const char* what, const void* data, int64_t rows, int64_t cols, int64_t ld) {
  TROUPE_CHECK(rows >= 0 && 0 < cols && cols <= kMaxInt, what, "is", rows, "x", cols);
  TROUPE_CHECK(cols <= ld && ld <= kMaxInt, what, "has", cols, "columns, leading dimension", ld);
  TROUPE_CHECK(data != nullptr || rows == 0, what, "is null");
}

// What both products ask for.
template <class Args>
void validate_common(const Args& x) {
  check_view("a", x.a.data, x.a.rows, x.a.cols, x.a.ld);
  check_view("b", x.b.data, x.b.rows, x.b.cols, x.b.ld);
  check_view("c", x.c.data, x.c.rows, x.c.cols, x.c.ld);
  TROUPE_CHECK(x.a.dtype == x.b.dtype, "a is", name(x.a.dtype), "b is", name(x.b.dtype));
  TROUPE_CHECK(0 < x.experts && x.experts < kMaxInt, "experts", x.experts);
  TROUPE_CHECK(x.expert_offset != nullptr);
}

double row_factor(const GroupedGemm& x, const float* factors, int64_t r) {
  if (factors == nullptr) return 1;
  const int64_t i = x.row_slot != nullptr ? x.row_slot[r] : r;
  return i < 0 ? 0 : factors[i];
}

template <class T>
double dot(const GroupedGemm& x, int64_t e, int64_t r, int64_t n) {
  const auto a = x.a.as<T>(), b = x.b.as<T>();
  const int64_t K = a.cols, src = x.row_src != nullptr ? x.row_src[r] : r;
  double sum = 0;
  for (int64_t k = 0; src >= 0 && k < K; ++k) {
    sum += wide(a(src, k)) * wide(x.transpose_b ? b(e * x.c.cols + n, k) : b(e * K + k, n));
  }
  return sum;
}

template <class T>
double dot(const GroupedGemmWeight& x, int64_t e, int64_t m, int64_t n) {
  const auto a = x.a.as<T>(), b = x.b.as<T>();
  double sum = 0;
  for (int64_t r = x.expert_offset[e]; r < x.expert_offset[e + 1]; ++r) {
    const int64_t src = x.row_src != nullptr ? x.row_src[r] : r;
    if (src < 0) continue;
    sum += wide(a(x.gather_a ? src : r, m)) * wide(b(x.gather_b ? src : r, n));
  }
  return sum;
}

}  // namespace

void validate(const GroupedGemm& x) {
  validate_common(x);
  const int64_t R = x.c.rows, N = x.c.cols, K = x.a.cols, E = x.experts;
  TROUPE_CHECK(R <= kMaxInt, "rows", R);
  TROUPE_CHECK(x.row_src != nullptr || x.a.rows == R, "a has", x.a.rows, "rows, c", R);
  TROUPE_CHECK(x.b.rows == E * (x.transpose_b ? N : K) && x.b.cols == (x.transpose_b ? K : N),
               "b is", x.b.rows, "x", x.b.cols, "for E, N, K", E, N, K);
  TROUPE_CHECK(x.c.dtype == x.a.dtype, "a is", name(x.a.dtype), "c is", name(x.c.dtype));
  if (x.bias.data == nullptr) return;
  TROUPE_CHECK(x.bias.rows == E && x.bias.cols == N && x.bias.ld >= N, "bias is", x.bias.rows, "x",
               x.bias.cols, "for E, N", E, N);
  TROUPE_CHECK(x.bias.dtype == x.a.dtype, "a is", name(x.a.dtype), "bias is", name(x.bias.dtype));
}

void validate(const GroupedGemmWeight& x) {
  validate_common(x);
  TROUPE_CHECK(x.c.rows == x.experts * x.a.cols && x.c.cols == x.b.cols, "c is", x.c.rows, "x",
               x.c.cols, "for E, M, N", x.experts, x.a.cols, x.b.cols);
  // R, unless both are gathered. A list of no rows has no address.
  const int64_t packed = x.gather_a ? x.b.rows : x.a.rows;
  TROUPE_CHECK(x.row_src != nullptr || packed == 0 || (!x.gather_a && !x.gather_b),
               "gathers without row_src for", packed, "rows");
  TROUPE_CHECK(x.gather_a || x.gather_b || x.a.rows == x.b.rows, "a has", x.a.rows, "rows, b",
               x.b.rows);
  TROUPE_CHECK(x.a.rows <= kMaxInt && x.b.rows <= kMaxInt, "rows", x.a.rows, x.b.rows);
  TROUPE_CHECK(x.c.dtype == x.a.dtype || (x.c.dtype == Dtype::kF32 && x.a.dtype != Dtype::kF64),
               "a is", name(x.a.dtype), "c is", name(x.c.dtype));
  TROUPE_CHECK(!x.accumulate || size_bytes(x.c.dtype) >= 4, "accumulates in", name(x.c.dtype));
  TROUPE_CHECK(x.segment_rows >= 0 && x.segment_rows % 64 == 0, "segments of", x.segment_rows,
               "rows");
}

void validate(const ZeroRows& x) {
  check_view("out", x.out.data, x.out.rows, x.out.cols, x.out.ld);
  TROUPE_CHECK(x.first != nullptr);
}

void zero_rows_ref(const ZeroRows& x) {
  validate(x);
  dispatch_float64(x.out.dtype, [&]<class T>() {
    const auto out = x.out.as<T>();
    for (int64_t r = std::max(*x.first, 0); r < out.rows; ++r) {
      std::fill_n(out.row(r), out.cols, T(0.0f));
    }
  });
}

int64_t workspace_bytes(const GroupedGemmWeight& x) {
  const int64_t rows = x.gather_b ? x.a.rows : x.b.rows;
  return workspace_bytes(SegmentsSm90{.rows = x.segment_rows}, rows, x.experts, x.a.cols, x.b.cols);
}

int64_t flops(const GroupedGemm& x, int64_t true_rows) {
  return 2 * true_rows * x.c.cols * x.a.cols;
}

int64_t flops(const GroupedGemmWeight& x, int64_t true_rows) {
  return 2 * true_rows * x.a.cols * x.b.cols;
}

void grouped_gemm_ref(const GroupedGemm& x) {
  validate(x);
  dispatch_float64(x.a.dtype, [&]<class T>() {
    const auto c = x.c.as<T>();
    for (int64_t e = 0; e < x.experts; ++e) {
      for (int64_t r = x.expert_offset[e]; r < x.expert_offset[e + 1]; ++r) {
        for (int64_t n = 0; n < c.cols; ++n) {
          const double old = x.accumulate ? wide(c(r, n)) : 0;
          const double bias = x.bias.data != nullptr ? wide(x.bias.as<T>()(e, n)) : 0;
          c(r, n) = rounded<T>(old + row_factor(x, x.scale, r) * dot<T>(x, e, r, n) +
                               row_factor(x, x.bias_scale, r) * bias);
        }
      }
    }
  });
}

void grouped_gemm_weight_ref(const GroupedGemmWeight& x) {
  validate(x);
  dispatch_float64(x.a.dtype, [&]<class T>() {
    dispatch_float64(x.c.dtype, [&]<class Out>() {
      const auto c = x.c.as<Out>();
      for (int64_t row = 0; row < c.rows; ++row) {
        for (int64_t n = 0; n < c.cols; ++n) {
          const double sum = dot<T>(x, row / x.a.cols, row % x.a.cols, n);
          c(row, n) = rounded<Out>((x.accumulate ? wide(c(row, n)) : 0) + sum);
        }
      }
    });
  });
}

}  // namespace troupe
