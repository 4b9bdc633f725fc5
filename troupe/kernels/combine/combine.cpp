#include "troupe/kernels/combine/combine.h"

#include <algorithm>

namespace troupe {
namespace {

double addend(const Combine& a, int64_t t, int64_t d) {
  if (a.addend.data == nullptr) return 0;
  return dispatch_float64(a.addend.dtype, [&]<class A>() -> double {
    return static_cast<Wide<A>>(a.addend.as<A>()(t, d));
  });
}

}  // namespace

void validate(const Combine& a) {
  const int64_t T = a.plan.tokens, K = a.plan.choices, R = a.plan.rows, D = a.out.cols;
  TROUPE_CHECK(a.out.rows == T, "out has", a.out.rows, "rows, the plan", T, "tokens");
  TROUPE_CHECK(a.y.rows >= R && a.y.cols == D, "y is", a.y.rows, "x", a.y.cols, "for a bound of", R,
               "rows of width", D);
  TROUPE_CHECK(a.out.dtype == a.y.dtype, "y is", name(a.y.dtype), "out", name(a.out.dtype));
  TROUPE_CHECK(a.plan.slot_row != nullptr || T == 0, "plan");
  if (a.weights.data != nullptr) {
    TROUPE_CHECK(a.weights.rows == T && a.weights.cols == K && a.weights.ld == K, "weights are",
                 a.weights.rows, "x", a.weights.cols, "for", T, "tokens x", K);
    TROUPE_CHECK(a.weights.dtype == wide(a.y.dtype), "weights are", name(a.weights.dtype),
                 "beside y of", name(a.y.dtype));
  }
  if (a.addend.data != nullptr) {
    TROUPE_CHECK(a.addend.rows == T && a.addend.cols == D, "addend is", a.addend.rows, "x",
                 a.addend.cols, "for", T, "tokens of width", D);
    TROUPE_CHECK(a.addend.dtype == a.y.dtype || a.addend.dtype == Dtype::kF32, "addend is",
                 name(a.addend.dtype), "beside y of", name(a.y.dtype));
  }
}

int64_t bytes_moved(const Combine& a) {
  const int64_t rows = std::min(a.plan.rows, a.plan.tokens * a.plan.choices);
  const int64_t extra = a.addend.data == nullptr ? 0 : a.out.rows * size_bytes(a.addend.dtype);
  return ((rows + a.out.rows) * size_bytes(a.y.dtype) + extra) * a.out.cols +
         a.plan.tokens * a.plan.choices * int64_t{sizeof(int32_t)};
}

void combine_ref(const Combine& a) {
  validate(a);
  const int64_t K = a.plan.choices;
  dispatch_float64(a.y.dtype, [&]<class T>() {
    const auto y = a.y.as<T>();
    const auto out = a.out.as<T>();
    for (int64_t t = 0; t < out.rows; ++t) {
      for (int64_t d = 0; d < out.cols; ++d) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) {
          const int32_t row = a.plan.slot_row[t * K + k];
          if (row < 0) continue;
          const double w = a.weights.data == nullptr ? 1 : a.weights.as<Wide<T>>()(t, k);
          sum += w * static_cast<Wide<T>>(y(row, d));
        }
        out(t, d) = static_cast<T>(static_cast<Wide<T>>(sum + addend(a, t, d)));
      }
    }
  });
}

}  // namespace troupe
