// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/grad_norm/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe {

void validate(const SumSquares& a) {
  check_matrix(a.x, "x", 1, a.x.cols, a.x.dtype);
  TROUPE_CHECK(a.out != nullptr);
  TROUPE_CHECK(a.workspace != nullptr || workspace_bytes(a) == 0, "workspace of",
               workspace_bytes(a), "bytes");
}

void validate(const ClipScale& a) {
  TROUPE_CHECK(a.sum_squares != nullptr && a.scale != nullptr && a.norm != nullptr);
  TROUPE_CHECK(a.max_norm > 0, "max_norm", a.max_norm);
}

int64_t bytes_moved(const SumSquares& a) {
  return a.x.cols * size_bytes(a.x.dtype);
}

int64_t workspace_bytes(const SumSquares& a) {
  return (a.x.cols + kSumBlock - 1) / kSumBlock * int64_t{sizeof(double)};
}

void sum_squares_ref(const SumSquares& a) {
  validate(a);
  long double sum = a.add ? *a.out : 0;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for (int64_t i = 0; i < x.cols; ++i) {
      const long double v = static_cast<Wide<T>>(x(0, i));
      sum += v * v;
    }
  });
  *a.out = static_cast<double>(sum);
}

void clip_scale_ref(const ClipScale& a) {
  validate(a);
  const double norm = std::sqrt(*a.sum_squares);
  *a.norm = static_cast<float>(norm);
  *a.scale = std::isfinite(norm) ? static_cast<float>(std::min(1.0, a.max_norm / (norm + 1e-6)))
                                 : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace troupe
