// The CPU path: one pass over a row for its maximum and its sum, block by block, so that a row
// longer than the caches is read from memory once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "troupe/core/number/fast_math.h"
#include "troupe/kernels/cross_entropy/cross_entropy.h"

namespace troupe {
namespace {

constexpr int64_t kBlock = 2048;  // columns; they stay in the first cache between two passes

template <class W>
constexpr W kInfinity = std::numeric_limits<W>::infinity();

// log sum_v exp(x[v]) = base + log_sum, which apart keep the digits that their sum would lose.
template <class W>
struct LogSumExp {
  W base, log_sum;
};

// Blocks' sums meet in double, rescaled where the maximum rises. A NaN is lost in the maximum, and
// stays in the sum.
template <class T>
LogSumExp<Wide<T>> log_sum_exp(const T* x, int64_t V) {
  using W = Wide<T>;
  W top = -kInfinity<W>, base = 0;
  double sum = 0;
  for (int64_t begin = 0; begin < V; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, V);
    W block_top = top, block_sum = 0;
#pragma omp simd reduction(max : block_top)
    for (int64_t v = begin; v < end; ++v) {
      const W value = static_cast<W>(x[v]);
      block_top = value > block_top ? value : block_top;
    }
    if (block_top > top) {
      sum *= std::exp(static_cast<double>(top) - block_top);
      base = top = block_top;  // While all is -inf, base is 0: exp(-inf - 0) is 0, as it should be.
    }
#pragma omp simd reduction(+ : block_sum)
    for (int64_t v = begin; v < end; ++v) block_sum += fast::exp(static_cast<W>(x[v]) - base);
    sum += block_sum;
  }
  return {base, static_cast<W>(std::log(sum))};
}

template <class Args>
bool known_target(const Args& a, int64_t t) {
  return 0 <= a.target[t] && a.target[t] < a.logits.cols;
}

template <class W>
W weight_of(const MatRef& weight, int64_t t) {
  return weight.data == nullptr ? 1 : static_cast<const W*>(weight.data)[t * weight.ld];
}

template <class T>
void backward_row(const CrossEntropyBackward& a, int64_t t) {
  using W = Wide<T>;
  const T* x = a.logits.as<T>().row(t);
  T* grad = a.grad_logits.as<T>().row(t);
  const int64_t V = a.logits.cols;
  if (a.target[t] == a.ignore) return (void)std::fill_n(grad, V, static_cast<T>(W(0)));

  const W lse = a.lse.as<W>()(t, 0);
  W scale = a.grad_loss.as<W>()(t, 0) * weight_of<W>(a.weight, t);
  if (!known_target(a, t)) scale = std::numeric_limits<W>::quiet_NaN();
  const W softmax_scale = scale * (1 + 2 * static_cast<W>(a.z_loss) * lse);
  const W at_target = known_target(a, t) ? static_cast<W>(x[a.target[t]]) : W(0);
#pragma omp simd
  for (int64_t v = 0; v < V; ++v) {
    put(grad[v], softmax_scale * fast::exp(static_cast<W>(x[v]) - lse));
  }
  if (!known_target(a, t)) return;
  put(grad[a.target[t]], softmax_scale * fast::exp(at_target - lse) - scale);
}

}  // namespace

void cross_entropy_cpu(const CrossEntropy& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto loss = a.loss.as<W>(), lse = a.lse.as<W>();
    pool(a.logits.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        loss(t, 0) = lse(t, 0) = 0;
        if (a.target[t] == a.ignore) continue;
        const T* x = a.logits.as<T>().row(t);
        const LogSumExp<W> sum = log_sum_exp(x, a.logits.cols);
        const W l = sum.base + sum.log_sum;
        const W at_target = known_target(a, t) ? static_cast<W>(x[a.target[t]])
                                               : std::numeric_limits<W>::quiet_NaN();
        lse(t, 0) = l;
        loss(t, 0) = weight_of<W>(a.weight, t) *
                     ((sum.base - at_target) + sum.log_sum + static_cast<W>(a.z_loss) * l * l);
      }
    });
  });
}

void cross_entropy_backward_cpu(const CrossEntropyBackward& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    pool(a.logits.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) backward_row<T>(a, t);
    });
  });
}

}  // namespace troupe
