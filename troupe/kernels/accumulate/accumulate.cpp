// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/accumulate/accumulate.h"

namespace troupe {

void validate(const Accumulate& a) {
  check_matrix(a.x, "x", 1, a.x.cols, a.x.dtype);
  TROUPE_CHECK(a.x.dtype != Dtype::kF64, "x is", name(a.x.dtype), "; sums are f32");
  TROUPE_CHECK(a.sum != nullptr || a.x.cols == 0, "sum of", a.x.cols, "elements");
}

int64_t bytes_moved(const Accumulate& a) {
  return a.x.cols * (size_bytes(a.x.dtype) + (a.add ? 8 : 4));
}

void accumulate_ref(const Accumulate& a) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for (int64_t i = 0; i < x.cols; ++i) {
      const auto v = static_cast<float>(x(0, i));
      a.sum[i] = a.add ? a.sum[i] + v : v;
    }
  });
}

}  // namespace troupe
