// The CPU path: rows in parallel. Two tables take turns, so that a value which follows itself does
// not wait for its own count.
#include <algorithm>
#include <vector>

#include "troupe/kernels/histogram/histogram.h"

namespace troupe {
namespace {

template <class T>
void count_row(const T* x, int64_t n, int64_t bins, int32_t* even, int32_t* odd) {
  using U = std::make_unsigned_t<T>;
  const auto in_range = [bins](T v) {
    return v >= 0 && static_cast<uint64_t>(static_cast<U>(v)) < static_cast<uint64_t>(bins);
  };
  int64_t j = 0;
  for (; j + 1 < n; j += 2) {
    if (in_range(x[j])) ++even[x[j]];
    if (in_range(x[j + 1])) ++odd[x[j + 1]];
  }
  if (j < n && in_range(x[j])) ++even[x[j]];
  for (int64_t b = 0; b < bins; ++b) even[b] += odd[b];
}

}  // namespace

void histogram_cpu(const Histogram& a, const Pool& pool) {
  validate(a);
  dispatch_integer(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    pool(a.x.rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> odd(a.bins);
      for (int64_t i = begin; i < end; ++i) {
        int32_t* even = a.out + i * a.bins;
        std::fill_n(even, a.bins, 0);
        std::fill(odd.begin(), odd.end(), 0);
        count_row(x + i * a.x.cols, a.x.cols, a.bins, even, odd.data());
      }
    });
  });
}

}  // namespace troupe
