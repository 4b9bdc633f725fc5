#include "troupe/kernels/row_scores/row_scores.h"

namespace troupe {
namespace {

template <class T>
void gather(const RowScores& a) {
  const Mat<const T> in = a.in.as<T>();
  const Mat<T> out = a.out.as<T>();
  for (int64_t i = 0; i < out.rows; ++i) out(i, 0) = a.index[i] < 0 ? T(0) : in(a.index[i], 0);
}

}  // namespace

void validate(const RowScores& a) {
  TROUPE_CHECK(a.in.dtype == a.out.dtype, "types differ:", name(a.in.dtype), name(a.out.dtype));
  TROUPE_CHECK(a.in.dtype == Dtype::kF32 || a.in.dtype == Dtype::kF64, "scores must be f32 or f64,",
               "not", name(a.in.dtype));
  TROUPE_CHECK(a.in.cols == 1 && a.out.cols == 1, "scores are columns:", a.in.cols, a.out.cols);
  TROUPE_CHECK(a.index != nullptr || a.out.rows == 0, "no index for", a.out.rows, "scores");
}

int64_t bytes_moved(const RowScores& a) {
  return a.out.rows * (4 + 2 * size_bytes(a.out.dtype));
}

void row_scores_ref(const RowScores& a) {
  validate(a);
  a.in.dtype == Dtype::kF64 ? gather<double>(a) : gather<float>(a);
}

}  // namespace troupe
