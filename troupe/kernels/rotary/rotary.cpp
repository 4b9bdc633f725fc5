// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/rotary/rotary.h"

#include <complex>
#include <limits>

namespace troupe {

void validate(const Rotary& a) {
  check_matrix(a.x, "x", a.x.rows, a.x.cols, a.x.dtype);
  check_matrix(a.y.read(), "y", a.x.rows, a.x.cols, a.x.dtype);
  check_matrix(a.cos, "cos", a.cos.rows, a.cos.cols, wide(a.x.dtype));
  check_matrix(a.sin, "sin", a.cos.rows, a.cos.cols, wide(a.x.dtype));
  TROUPE_CHECK(a.head_dim > 0 && a.x.cols % a.head_dim == 0, "rows of", a.x.cols,
               "elements are no heads of", a.head_dim);
  TROUPE_CHECK(a.first >= 0 && a.first + 2 * a.cos.cols <= a.head_dim, "dimensions", a.first, "to",
               a.first + 2 * a.cos.cols, "of", a.head_dim);
  TROUPE_CHECK(a.cos.rows > 0 || a.x.rows == 0, "tables of no positions");
}

int64_t bytes_moved(const Rotary& a) {
  return 2 * a.x.rows * a.x.cols * size_bytes(a.x.dtype) +
         2 * a.x.rows * a.cos.cols * size_bytes(a.cos.dtype);
}

void rotary_ref(const Rotary& a) {
  validate(a);
  const int64_t pairs = a.cos.cols;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto x = a.x.as<T>();
    const auto y = a.y.as<T>();
    const auto put_at = [&](int64_t t, int64_t i, double v) {
      y(t, i) = static_cast<T>(static_cast<W>(v));
    };
    for (int64_t t = 0; t < x.rows; ++t) {
      const int64_t p = a.position == nullptr ? t % a.cos.rows : a.position[t];
      const bool known = 0 <= p && p < a.cos.rows;
      for (int64_t head = 0; head < x.cols; head += a.head_dim) {
        for (int64_t i = 0; i < a.head_dim; ++i) y(t, head + i) = x(t, head + i);
        for (int64_t j = 0; j < pairs; ++j) {
          const bool half = a.form == RotaryForm::kHalf;
          const int64_t i1 = head + a.first + (half ? j : 2 * j), i2 = i1 + (half ? pairs : 1);
          const double nan = std::numeric_limits<double>::quiet_NaN();
          const double c = known ? a.cos.as<W>()(p, j) : nan, s = known ? a.sin.as<W>()(p, j) : nan;
          const std::complex<double> turn(c, a.inverse ? -s : s);
          const std::complex<double> from(static_cast<W>(y(t, i1)), static_cast<W>(y(t, i2)));
          const std::complex<double> to = from * turn;  // (a + i b)(c + i s)
          put_at(t, i1, to.real());
          put_at(t, i2, to.imag());
        }
      }
    }
  });
}

}  // namespace troupe
