// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class Args>
void check_common(const Args& a) {
  const int64_t T = a.logits.rows;
  check_matrix(a.logits, "logits", T, a.logits.cols, a.logits.dtype);
  if (a.weight.data != nullptr) check_matrix(a.weight, "weight", T, 1, wide(a.logits.dtype));
  TROUPE_CHECK(a.target != nullptr || T == 0, "target is missing");
  TROUPE_CHECK(a.logits.cols > 0 || T == 0, "words", a.logits.cols);
  TROUPE_CHECK(a.z_loss >= 0 && std::isfinite(a.z_loss), "z_loss", a.z_loss);
}

double element(const MatRef& x, int64_t t) {
  return dispatch_float64(
      x.dtype, [&]<class T>() -> double { return static_cast<Wide<T>>(x.as<T>()(t, 0)); });
}

template <class T>
std::vector<double> row_of(const Mat<const T>& x, int64_t t) {
  std::vector<double> row(x.cols);
  std::transform(x.row(t), x.row(t) + x.cols, row.begin(),
                 [](T v) { return static_cast<Wide<T>>(v); });
  return row;
}

double log_sum_exp(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  const double base = std::isinf(top) && top < 0 ? 0 : top;  // No word is possible: log 0.
  double sum = 0;
  for (const double v : x) sum += std::exp(v - base);
  return base + std::log(sum);
}

}  // namespace

void validate(const CrossEntropy& a) {
  check_common(a);
  check_matrix(a.loss.read(), "loss", a.logits.rows, 1, wide(a.logits.dtype));
  check_matrix(a.lse.read(), "lse", a.logits.rows, 1, wide(a.logits.dtype));
}

void validate(const CrossEntropyBackward& a) {
  check_common(a);
  check_matrix(a.lse, "lse", a.logits.rows, 1, wide(a.logits.dtype));
  check_matrix(a.grad_logits.read(), "grad_logits", a.logits.rows, a.logits.cols, a.logits.dtype);
  MatRef grad = a.grad_loss;
  if (grad.ld == 0) grad.ld = 1;  // One gradient for all tokens.
  check_matrix(grad, "grad_loss", a.logits.rows, 1, wide(a.logits.dtype));
}

int64_t bytes_moved(const CrossEntropy& a) {
  return a.logits.rows * a.logits.cols * size_bytes(a.logits.dtype);
}

int64_t bytes_moved(const CrossEntropyBackward& a) {
  return 2 * a.logits.rows * a.logits.cols * size_bytes(a.logits.dtype);
}

void cross_entropy_ref(const CrossEntropy& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    using W = Wide<T>;
    for (int64_t t = 0; t < a.logits.rows; ++t) {
      double loss = 0, lse = 0;
      if (a.target[t] != a.ignore) {
        const std::vector<double> x = row_of(a.logits.as<T>(), t);
        const bool known = 0 <= a.target[t] && a.target[t] < a.logits.cols;
        lse = log_sum_exp(x);
        loss = lse - (known ? x[a.target[t]] : kNan) + a.z_loss * lse * lse;
        if (a.weight.data != nullptr) loss *= element(a.weight, t);
      }
      a.loss.as<W>()(t, 0) = static_cast<W>(loss);
      a.lse.as<W>()(t, 0) = static_cast<W>(lse);
    }
  });
}

void cross_entropy_backward_ref(const CrossEntropyBackward& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    using W = Wide<T>;
    for (int64_t t = 0; t < a.logits.rows; ++t) {
      T* grad = a.grad_logits.as<T>().row(t);
      if (a.target[t] == a.ignore) {
        std::fill_n(grad, a.logits.cols, static_cast<T>(W(0)));
        continue;
      }
      const std::vector<double> x = row_of(a.logits.as<T>(), t);
      const bool known = 0 <= a.target[t] && a.target[t] < a.logits.cols;
      const double lse = log_sum_exp(x);
      double scale = known ? element(a.grad_loss, t) : kNan;
      if (a.weight.data != nullptr) scale *= element(a.weight, t);
      for (int64_t v = 0; v < a.logits.cols; ++v) {
        const double p = std::exp(x[v] - lse), one = v == a.target[t] ? 1 : 0;
        grad[v] = static_cast<T>(static_cast<W>(scale * (p * (1 + 2 * a.z_loss * lse) - one)));
      }
    }
  });
}

}  // namespace troupe
