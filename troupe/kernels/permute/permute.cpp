#include "troupe/kernels/permute/permute.h"

namespace troupe {

void validate(const Permute& a) {
  const int64_t T = a.plan.tokens, K = a.plan.choices, R = a.plan.rows;
  TROUPE_CHECK(a.x.rows == T, "x has", a.x.rows, "rows, the plan", T, "tokens");
  TROUPE_CHECK(a.out.rows >= R && a.out.cols == a.x.cols, "out is", a.out.rows, "x", a.out.cols,
               "for a bound of", R, "rows of width", a.x.cols);
  TROUPE_CHECK(a.out.dtype == a.x.dtype, "x is", name(a.x.dtype), "out", name(a.out.dtype));
  TROUPE_CHECK(a.plan.expert_offset != nullptr, "plan");
  const bool maps = a.plan.row_src != nullptr && a.plan.row_slot != nullptr;
  TROUPE_CHECK((maps && a.plan.slot_row != nullptr) || T == 0, "plan");
  if (a.weights.data == nullptr) return;
  TROUPE_CHECK(a.weights.rows == T && a.weights.cols == K && a.weights.ld == K, "weights are",
               a.weights.rows, "x", a.weights.cols, "for", T, "tokens x", K);
  TROUPE_CHECK(a.weights.dtype == wide(a.x.dtype), "weights are", name(a.weights.dtype),
               "beside x of", name(a.x.dtype));
}

int64_t bytes_moved(const Permute& a) {
  return (a.x.rows + a.plan.rows) * a.x.cols * size_bytes(a.x.dtype) +
         a.plan.tokens * a.plan.choices * int64_t{sizeof(int32_t)};
}

void permute_ref(const Permute& a) {
  validate(a);
  const int64_t K = a.plan.choices;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    const auto out = a.out.as<T>();
    const int64_t end = a.clear_tail ? a.plan.rows : a.plan.expert_offset[a.plan.experts];
    for (int64_t r = 0; r < end; ++r) {
      const int32_t slot = a.plan.row_slot[r];  // -1 in pads and in the tail
      for (int64_t d = 0; d < x.cols; ++d) {
        double value = 0;
        if (slot >= 0) {
          const double w =
              a.weights.data == nullptr ? 1 : a.weights.as<Wide<T>>()(slot / K, slot % K);
          value = w * static_cast<Wide<T>>(x(slot / K, d));
        }
        out(r, d) = static_cast<T>(static_cast<Wide<T>>(value));
      }
    }
  });
}

}  // namespace troupe
