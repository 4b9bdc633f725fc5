#include "troupe/kernels/cumsum/cumsum.h"

#include "troupe/core/number/round.h"

namespace troupe {

void validate(const Cumsum& a) {
  TROUPE_CHECK(a.x.rows >= 0 && a.x.cols >= 0, "x is", a.x.rows, "x", a.x.cols);
  TROUPE_CHECK(a.out.rows == a.x.rows && a.out.cols == a.x.cols, "x is", a.x.rows, "x", a.x.cols,
               "out", a.out.rows, "x", a.out.cols);
  TROUPE_CHECK(a.out.dtype == a.x.dtype, "x is", name(a.x.dtype), "out", name(a.out.dtype));
  TROUPE_CHECK((a.x.data != nullptr && a.out.data != nullptr) || a.x.rows * a.x.cols == 0,
               "x, out");
}

int64_t bytes_moved(const Cumsum& a) {
  return 2 * a.x.rows * a.x.cols * size_bytes(a.x.dtype);
}

int64_t workspace_bytes(const Cumsum& a) {
  return a.x.rows * ceil_div(a.x.cols, kCumsumTile) * int64_t{sizeof(uint64_t)};
}

void cumsum_ref(const Cumsum& a) {
  validate(a);
  dispatch_integer(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    T* out = a.out.as<T>();
    for (int64_t i = 0; i < a.x.rows; ++i) {
      uint64_t sum = 0;
      for (int64_t j = i * a.x.cols; j < (i + 1) * a.x.cols; ++j) {
        const uint64_t before = sum;
        sum += static_cast<uint64_t>(x[j]);
        out[j] = static_cast<T>(a.exclusive ? before : sum);
      }
    }
  });
}

}  // namespace troupe
