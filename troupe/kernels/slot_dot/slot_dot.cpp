#include "troupe/kernels/slot_dot/slot_dot.h"

#include <algorithm>

namespace troupe {

void validate(const SlotDot& a) {
  const int64_t T = a.plan.tokens, K = a.plan.choices, R = a.plan.rows;
  TROUPE_CHECK(a.x.rows == T, "x has", a.x.rows, "rows, the plan", T, "tokens");
  TROUPE_CHECK(a.rows.rows >= R && a.rows.cols == a.x.cols, "rows are", a.rows.rows, "x",
               a.rows.cols, "for a bound of", R, "rows of width", a.x.cols);
  TROUPE_CHECK(a.out.rows == T && a.out.cols == K && a.out.ld == K, "out is", a.out.rows, "x",
               a.out.cols, "for", T, "tokens x", K);
  TROUPE_CHECK(a.rows.dtype == a.x.dtype && a.out.dtype == wide(a.x.dtype), "rows are",
               name(a.rows.dtype), "x", name(a.x.dtype), "out", name(a.out.dtype));
  TROUPE_CHECK(a.plan.slot_row != nullptr || T == 0, "plan");
}

int64_t bytes_moved(const SlotDot& a) {
  const int64_t slots = a.plan.tokens * a.plan.choices;
  return (std::min(a.plan.rows, slots) + a.x.rows) * a.x.cols * size_bytes(a.x.dtype) +
         slots * (4 + size_bytes(a.out.dtype));
}

void slot_dot_ref(const SlotDot& a) {
  validate(a);
  const int64_t K = a.plan.choices;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto rows = a.rows.as<T>(), x = a.x.as<T>();
    const auto out = a.out.as<Wide<T>>();
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t k = 0; k < K; ++k) {
        const int32_t row = a.plan.slot_row[t * K + k];
        double sum = 0;
        for (int64_t d = 0; row >= 0 && d < x.cols; ++d) {
          sum += double{static_cast<Wide<T>>(rows(row, d))} * static_cast<Wide<T>>(x(t, d));
        }
        out(t, k) = static_cast<Wide<T>>(sum);
      }
    }
  });
}

}  // namespace troupe
