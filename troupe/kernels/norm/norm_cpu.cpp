// The CPU path: one pass for the statistics, one for the result; a row stays in the first cache.
#include <algorithm>
#include <cmath>

#include "troupe/kernels/norm/norm.h"

namespace troupe {
namespace {

constexpr int64_t kElementsPerRange = 32768;

int64_t rows_per_range(int64_t cols) {
  return std::max<int64_t>(1, kElementsPerRange / std::max<int64_t>(1, cols));
}

template <class T>
T* row_or_null(void* data, int64_t ld, int64_t r) {
  return data == nullptr ? nullptr : static_cast<T*>(data) + r * ld;
}
template <class T>
const T* row_or_null(const MatRef& x, int64_t r) {
  return x.data == nullptr ? nullptr : static_cast<const T*>(x.data) + r * x.ld;
}

template <class T>
void add(const T* x, const T* residual, T* sum, int64_t D) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t d = 0; d < D; ++d) put(sum[d], static_cast<W>(x[d]) + static_cast<W>(residual[d]));
}

// The sum of f(d) over d < n in 16 partial sums: a serial float sum over a wide row is off by more
// than the tolerance, and how many lanes the compiler takes is its own affair.
template <class W, class F>
W lane_sum(int64_t n, F f) {
  constexpr int64_t kLanes = 16;
  W lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) {
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += f(d + l);
  }
  for (int64_t l = 0; d < n; ++d, ++l) lanes[l] += f(d);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// Mean (0 for RMSNorm) and 1 / sqrt(variance + eps). The variance is taken around the mean in a
// second pass: sum s^2 - D mean^2 would cancel.
template <class T>
struct Statistics {
  Wide<T> mean = 0, rstd;

  Statistics(const T* s, int64_t D, NormKind kind, float eps) {
    using W = Wide<T>;
    if (kind == NormKind::kLayer) {
      mean = lane_sum<W>(D, [=](int64_t d) { return static_cast<W>(s[d]); }) / static_cast<W>(D);
    }
    const W center = mean;
    const W squares = lane_sum<W>(D, [=](int64_t d) {
      const W x = static_cast<W>(s[d]) - center;
      return x * x;
    });
    rstd = 1 / std::sqrt(squares / static_cast<W>(D) + static_cast<W>(eps));
  }
};

template <class T>
Wide<T> rounded(Wide<T> x) {
  return static_cast<Wide<T>>(static_cast<T>(x));
}

template <bool kRound, class T>
void scale_row(const T* s, const T* weight, const T* bias, T* y, int64_t D, Statistics<T> stat) {
  using W = Wide<T>;
  const W mean = stat.mean, rstd = stat.rstd;
  const auto n = [=](int64_t d) {
    const W value = (static_cast<W>(s[d]) - mean) * rstd;
    return kRound ? rounded<T>(value) : value;
  };
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) put(y[d], n(d) * static_cast<W>(weight[d]));
  } else {
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) {
      put(y[d], n(d) * static_cast<W>(weight[d]) + static_cast<W>(bias[d]));
    }
  }
}

// One row of backward. The sums take part only where they are wanted.
template <class T>
struct BackwardRow {
  using W = Wide<T>;
  const T *s, *weight, *grad, *grad_sum;
  T* grad_s;
  W *sum_weight, *sum_bias;
  W mean, rstd;
  bool round;

  void add_sums(int64_t D) const {
    if (sum_weight != nullptr && round) {
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) {
        const W n = (static_cast<W>(s[d]) - mean) * rstd;
        sum_weight[d] += static_cast<W>(grad[d]) * rounded<T>(n);
      }
    } else if (sum_weight != nullptr) {
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) {
        sum_weight[d] += static_cast<W>(grad[d]) * ((static_cast<W>(s[d]) - mean) * rstd);
      }
    }
    if (sum_bias == nullptr) return;
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) sum_bias[d] += static_cast<W>(grad[d]);
  }

  void write_gradient(int64_t D, NormKind kind) const {
    W sum_an = 0, sum_a = 0;
#pragma omp simd reduction(+ : sum_an, sum_a)
    for (int64_t d = 0; d < D; ++d) {
      const W a = static_cast<W>(grad[d]) * static_cast<W>(weight[d]);
      sum_an += a * ((static_cast<W>(s[d]) - mean) * rstd);
      sum_a += a;
    }
    const W along = sum_an / static_cast<W>(D);
    const W shift = kind == NormKind::kLayer ? sum_a / static_cast<W>(D) : W(0);
    const auto own = [&](int64_t d) {
      const W n = (static_cast<W>(s[d]) - mean) * rstd;
      return rstd * (static_cast<W>(grad[d]) * static_cast<W>(weight[d]) - n * along - shift);
    };
    if (grad_sum == nullptr) {
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) put(grad_s[d], own(d));
    } else {
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) put(grad_s[d], own(d) + static_cast<W>(grad_sum[d]));
    }
  }
};

// Adds the ranges' sums, which are one after the other, in order.
template <class W>
void add_ranges(const W* sums, int64_t count, const MutRef& out, const Pool& pool) {
  if (out.data == nullptr) return;
  W* total = static_cast<W*>(out.data);
  pool(out.cols, 256, [&](int64_t begin, int64_t end) {
    std::fill(total + begin, total + end, W(0));
    for (int64_t i = 0; i < count; ++i) {
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) total[d] += sums[i * out.cols + d];
    }
  });
}

template <class T>
void backward_range(const NormBackward& a, int64_t begin, int64_t end, Wide<T>* sum_weight,
                    Wide<T>* sum_bias) {
  using W = Wide<T>;
  const int64_t D = a.s.cols;
  if (sum_weight != nullptr) std::fill_n(sum_weight, D, W(0));
  if (sum_bias != nullptr) std::fill_n(sum_bias, D, W(0));
  const bool layer = a.kind == NormKind::kLayer;
  for (int64_t r = begin; r < end; ++r) {
    const BackwardRow<T> row{.s = row_or_null<T>(a.s, r),
                             .weight = row_or_null<T>(a.weight, 0),
                             .grad = row_or_null<T>(a.grad_y, r),
                             .grad_sum = row_or_null<T>(a.grad_sum, r),
                             .grad_s = row_or_null<T>(a.grad_s.data, a.grad_s.ld, r),
                             .sum_weight = sum_weight,
                             .sum_bias = sum_bias,
                             .mean = layer ? *row_or_null<W>(a.mean, r) : W(0),
                             .rstd = *row_or_null<W>(a.rstd, r),
                             .round = a.round_before_weight};
    row.add_sums(D);  // First: the gradient may be written over grad_y.
    row.write_gradient(D, a.kind);
  }
}

}  // namespace

void norm_cpu(const Norm& a, const Pool& pool) {
  validate(a);
  const int64_t D = a.x.cols;
  dispatch_float64(a.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const T *weight = row_or_null<T>(a.weight, 0), *bias = row_or_null<T>(a.bias, 0);
    pool(a.x.rows, rows_per_range(D), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* s = row_or_null<T>(a.x, r);
        if (a.residual.data != nullptr) {
          T* sum = row_or_null<T>(a.sum.data, a.sum.ld, r);
          add(s, row_or_null<T>(a.residual, r), sum, D);
          s = sum;
        }
        const Statistics<T> stat(s, D, a.kind, a.eps);
        T* y = row_or_null<T>(a.y.data, a.y.ld, r);
        if (a.round_before_weight) {
          scale_row<true>(s, weight, bias, y, D, stat);
        } else {
          scale_row<false>(s, weight, bias, y, D, stat);
        }
        if (a.mean.data != nullptr) *row_or_null<W>(a.mean.data, a.mean.ld, r) = stat.mean;
        if (a.rstd.data != nullptr) *row_or_null<W>(a.rstd.data, a.rstd.ld, r) = stat.rstd;
      }
    });
  });
}

void norm_backward_cpu(const NormBackward& a, const Pool& pool) {
  validate(a);
  const auto [count, each] = norm_ranges(a.s.rows);
  dispatch_float64(a.s.dtype, [&, count = count, each = each]<class T>() {
    using W = Wide<T>;
    const int64_t D = a.s.cols;
    W* weights = a.grad_weight.data == nullptr ? nullptr : static_cast<W*>(a.workspace);
    W* biases = a.grad_bias.data == nullptr ? nullptr : static_cast<W*>(a.workspace);
    if (weights != nullptr && biases != nullptr) biases += count * D;
    pool(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        backward_range<T>(a, i * each, std::min((i + 1) * each, a.s.rows),
                          weights == nullptr ? nullptr : weights + i * D,
                          biases == nullptr ? nullptr : biases + i * D);
      }
    });
    add_ranges(weights, count, a.grad_weight, pool);
    add_ranges(biases, count, a.grad_bias, pool);
  });
}

}  // namespace troupe
