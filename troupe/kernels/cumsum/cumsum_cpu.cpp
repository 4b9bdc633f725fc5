// The CPU path: one pass over each row, rows in parallel.
#include "troupe/kernels/cumsum/cumsum.h"

namespace troupe {
namespace {

template <class T>
void cumsum_row(const T* x, int64_t n, bool exclusive, T* out) {
  uint64_t sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    const auto value = static_cast<uint64_t>(x[j]);
    out[j] = static_cast<T>(exclusive ? sum : sum + value);
    sum += value;
  }
}

}  // namespace

void cumsum_cpu(const Cumsum& a, const Pool& pool) {
  validate(a);
  dispatch_integer(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    T* out = a.out.as<T>();
    pool(a.x.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        cumsum_row(x + i * a.x.cols, a.x.cols, a.exclusive, out + i * a.x.cols);
      }
    });
  });
}

}  // namespace troupe
