// The CPU path: kLanes sums side by side, which the compiler turns into vector registers; they are
// added at the end in a fixed order.
#include <algorithm>

#include "troupe/kernels/slot_dot/slot_dot.h"

namespace troupe {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kBytesPerRange = 1 << 16;

template <class T>
Wide<T> dot(const T* a, const T* b, int64_t n) {
  Wide<T> lane[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      lane[i] += static_cast<Wide<T>>(a[d + i]) * static_cast<Wide<T>>(b[d + i]);
    }
  }
  for (int64_t i = 0; d + i < n; ++i) {
    lane[i] += static_cast<Wide<T>>(a[d + i]) * static_cast<Wide<T>>(b[d + i]);
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

}  // namespace

void slot_dot_cpu(const SlotDot& a, const Pool& pool) {
  validate(a);
  const int64_t K = a.plan.choices;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto rows = a.rows.as<T>(), x = a.x.as<T>();
    const auto out = a.out.as<Wide<T>>();
    const int64_t token_bytes = K * x.cols * int64_t{sizeof(T)};
    const int64_t grain = kBytesPerRange / std::max<int64_t>(1, token_bytes) + 1;
    pool(x.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t k = 0; k < K; ++k) {
          const int32_t row = a.plan.slot_row[t * K + k];
          out(t, k) = row < 0 ? Wide<T>{0} : dot(rows.row(row), x.row(t), x.cols);
        }
      }
    });
  });
}

}  // namespace troupe
