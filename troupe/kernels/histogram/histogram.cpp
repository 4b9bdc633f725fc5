#include "troupe/kernels/histogram/histogram.h"

#include <algorithm>
#include <limits>

namespace troupe {

void validate(const Histogram& a) {
  TROUPE_CHECK(a.bins >= 1 && a.bins <= std::numeric_limits<int32_t>::max(), "bins", a.bins);
  TROUPE_CHECK(a.x.rows >= 0 && a.x.cols >= 0 && a.x.cols <= std::numeric_limits<int32_t>::max(),
               "x is", a.x.rows, "x", a.x.cols);
  TROUPE_CHECK(a.out != nullptr || a.x.rows == 0, "out");
  TROUPE_CHECK(a.x.data != nullptr || a.x.rows * a.x.cols == 0, "x");
}

int64_t bytes_moved(const Histogram& a) {
  return a.x.rows * (a.x.cols * size_bytes(a.x.dtype) + a.bins * int64_t{4});
}

// A cluster has 8 blocks at most: longer rows are left to all multiprocessors.
HistogramPlan choose_histogram_plan(const Histogram& a) {
  constexpr int64_t kMaxBins = 8192, kBlockBytes = int64_t{16} << 10, kMaxRowBytes = 1 << 20;
  const int64_t row_bytes = a.x.cols * size_bytes(a.x.dtype);
  if (a.generic || a.bins > kMaxBins || row_bytes > kMaxRowBytes) return {};
  int64_t blocks = 1;
  while (blocks < 8 && blocks * kBlockBytes < row_bytes) blocks *= 2;
  return {.cluster_blocks = blocks};
}

void histogram_ref(const Histogram& a) {
  validate(a);
  std::fill_n(a.out, a.x.rows * a.bins, 0);
  dispatch_integer(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    for (int64_t i = 0; i < a.x.rows; ++i) {
      for (int64_t j = 0; j < a.x.cols; ++j) {
        const int64_t b = x[i * a.x.cols + j];
        if (0 <= b && b < a.bins) ++a.out[i * a.bins + b];
      }
    }
  });
}

}  // namespace troupe
