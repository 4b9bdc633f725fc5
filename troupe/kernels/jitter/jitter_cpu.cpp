// The CPU path: rows are shared out; four columns share a call of the generator.
#include <algorithm>

#include "troupe/kernels/jitter/factor.h"
#include "troupe/kernels/jitter/jitter.h"

namespace troupe {
namespace {

constexpr int64_t kElementsPerRange = 4096;
using jitter_detail::kColumns;

int64_t rows_per_range(int64_t columns) {
  return std::max<int64_t>(1, kElementsPerRange / std::max<int64_t>(1, columns));
}

}  // namespace

void jitter_cpu(const Jitter& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    const auto out = a.out.as<T>();
    pool(x.rows, rows_per_range(x.cols), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* in = x.row(t);
        T* to = out.row(t);
        for (int64_t d = 0; d < x.cols; d += kColumns) {
          const Words4 r = a.rng.bits(a.token(t), static_cast<uint32_t>(d / kColumns));
          for (int64_t i = 0; i < std::min(kColumns, x.cols - d); ++i) {
            const float u = jitter_detail::factor(r.w[i], a.epsilon);
            to[d + i] = static_cast<T>(static_cast<Wide<T>>(in[d + i]) * u);
          }
        }
      }
    });
  });
}

void normal_noise_cpu(const NormalNoise& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.out.dtype, [&]<class T>() {
    const auto out = a.out.as<T>();
    pool(out.rows, rows_per_range(out.cols), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t e = 0; e < out.cols; ++e) {
          const float n = a.rng.normal(a.token(t), static_cast<uint32_t>(e));
          out(t, e) = static_cast<T>(static_cast<Wide<T>>(a.std * n));
        }
      }
    });
  });
}

}  // namespace troupe
