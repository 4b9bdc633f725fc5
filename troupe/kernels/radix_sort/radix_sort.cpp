#include "troupe/kernels/radix_sort/radix_sort.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/kernels/radix_sort/passes.h"

namespace troupe {

void validate(const RadixSort& a) {
  const int64_t n = a.x.cols;
  TROUPE_CHECK(a.x.rows == 1 && a.out.rows == 1 && a.out.cols == n, "x is", a.x.rows, "x", n, "out",
               a.out.rows, "x", a.out.cols);
  TROUPE_CHECK(0 <= n && n <= std::numeric_limits<int32_t>::max(), "elements", n);
  TROUPE_CHECK(a.out.dtype == a.x.dtype, "x is", name(a.x.dtype), "out", name(a.out.dtype));
  TROUPE_CHECK(1 <= a.end_bit && a.end_bit <= 8 * size_bytes(a.x.dtype), "end_bit", a.end_bit, "of",
               name(a.x.dtype));
  const bool present = a.x.data != nullptr && a.out.data != nullptr && a.indices != nullptr;
  TROUPE_CHECK(present || n == 0, "x, out, indices");
  TROUPE_CHECK(a.x.data != a.out.data || n == 0, "out is x");
}

int64_t bytes_moved(const RadixSort& a) {
  const int64_t once = a.x.cols * (2 * size_bytes(a.x.dtype) + 8);
  return radix::num_passes(a.end_bit) * once;
}

int64_t workspace_bytes(const RadixSort& a) {
  const int64_t histograms = radix::chunks(a.x.cols).count * radix::kDigits * 4;
  const bool one_pass = a.end_bit <= radix::kDigitBits;
  // Histograms, then indices and values of every second pass.
  const int64_t buffers =
      one_pass ? 0 : round_up(a.x.cols * 4, 8) + a.x.cols * size_bytes(a.x.dtype);
  return histograms + buffers;
}

void radix_sort_ref(const RadixSort& a) {
  validate(a);
  dispatch_integer(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    constexpr int kWidth = 8 * static_cast<int>(sizeof(T));
    const auto key = [&](int32_t i) -> int64_t {
      if (a.end_bit == kWidth) return x[i];
      return static_cast<int64_t>(static_cast<uint64_t>(x[i]) & ((uint64_t{1} << a.end_bit) - 1));
    };
    std::vector<int32_t> order(a.x.cols);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t i, int32_t j) { return key(i) < key(j); });
    for (int64_t j = 0; j < a.x.cols; ++j) {
      a.indices[j] = order[j];
      a.out.as<T>()[j] = x[order[j]];
    }
  });
}

}  // namespace troupe
