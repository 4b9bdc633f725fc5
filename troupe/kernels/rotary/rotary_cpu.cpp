// The CPU path: tokens are shared out; each head's pairs are one vector loop.
#include <algorithm>
#include <limits>
#include <vector>

#include "troupe/kernels/rotary/rotary.h"

namespace troupe {
namespace {

constexpr int64_t kElementsPerRange = 32768;

// A head's turned part of n = 2 pairs dimensions. y may be x.
template <class T, class W>
void turn_half(const T* x, T* y, const W* c, const W* s, int64_t pairs) {
#pragma omp simd
  for (int64_t j = 0; j < pairs; ++j) {
    const W a = static_cast<W>(x[j]), b = static_cast<W>(x[j + pairs]);
    put(y[j], a * c[j] - b * s[j]);
    put(y[j + pairs], b * c[j] + a * s[j]);
  }
}

template <class T, class W>
void turn_interleaved(const T* x, T* y, const W* c, const W* s, int64_t pairs) {
#pragma omp simd
  for (int64_t j = 0; j < pairs; ++j) {
    const W a = static_cast<W>(x[2 * j]), b = static_cast<W>(x[2 * j + 1]);
    put(y[2 * j], a * c[j] - b * s[j]);
    put(y[2 * j + 1], b * c[j] + a * s[j]);
  }
}

// One token's cos, and its sin with the direction's sign.
template <class W>
struct Angles {
  std::vector<W> c, s;

  explicit Angles(int64_t pairs) : c(pairs), s(pairs) {}

  void load(const Rotary& a, int64_t t) {
    const int64_t p = a.position == nullptr ? t % a.cos.rows : a.position[t];
    if (p < 0 || p >= a.cos.rows) {
      std::fill(c.begin(), c.end(), std::numeric_limits<W>::quiet_NaN());
      return;
    }
    const W *from_c = a.cos.as<W>().row(p), *from_s = a.sin.as<W>().row(p);
    const W sign = a.inverse ? W(-1) : W(1);
    for (size_t j = 0; j < c.size(); ++j) c[j] = from_c[j], s[j] = sign * from_s[j];
  }
};

}  // namespace

void rotary_cpu(const Rotary& a, const Pool& pool) {
  validate(a);
  const int64_t pairs = a.cos.cols, cols = a.x.cols;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    const auto y = a.y.as<T>();
    const int64_t each = std::max<int64_t>(1, kElementsPerRange / std::max<int64_t>(1, cols));
    pool(x.rows, each, [&](int64_t begin, int64_t end) {
      Angles<Wide<T>> angles(pairs);
      for (int64_t t = begin; t < end; ++t) {
        angles.load(a, t);
        if (2 * pairs != a.head_dim && y.row(t) != x.row(t)) {
          std::copy_n(x.row(t), cols, y.row(t));
        }
        for (int64_t head = a.first; head < cols; head += a.head_dim) {
          const auto turn =
              a.form == RotaryForm::kHalf ? turn_half<T, Wide<T>> : turn_interleaved<T, Wide<T>>;
          turn(x.row(t) + head, y.row(t) + head, angles.c.data(), angles.s.data(), pairs);
        }
      }
    });
  });
}

}  // namespace troupe
