// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/norm/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe {
namespace {

constexpr int64_t kMinRowsPerRange = 32, kMaxRanges = 512;

void check_optional(const MatRef& x, const char* what, int64_t rows, int64_t cols, Dtype dtype) {
  if (x.data != nullptr) check_matrix(x, what, rows, cols, dtype);
}

// n as forward forms it: what y and grad_weight multiply.
template <class T>
double normalized(double s, double mean, double rstd, bool rounded) {
  const double n = (s - mean) * rstd;
  return rounded ? static_cast<Wide<T>>(static_cast<T>(static_cast<Wide<T>>(n))) : n;
}

}  // namespace

NormRanges norm_ranges(int64_t rows) {
  const int64_t each = std::max(kMinRowsPerRange, (rows + kMaxRanges - 1) / kMaxRanges);
  return {(rows + each - 1) / each, each};
}

void validate(const Norm& a) {
  const int64_t rows = a.x.rows, cols = a.x.cols;
  const Dtype dtype = a.x.dtype;
  check_matrix(a.x, "x", rows, cols, dtype);
  check_matrix(a.weight, "weight", 1, cols, dtype);
  check_matrix(a.y.read(), "y", rows, cols, dtype);
  check_optional(a.bias, "bias", 1, cols, dtype);
  check_optional(a.residual, "residual", rows, cols, dtype);
  if (a.residual.data != nullptr) check_matrix(a.sum.read(), "sum", rows, cols, dtype);
  check_optional(a.mean.read(), "mean", rows, 1, wide(dtype));
  check_optional(a.rstd.read(), "rstd", rows, 1, wide(dtype));
  TROUPE_CHECK(cols > 0 || rows == 0, "rows of no columns");
  TROUPE_CHECK(a.kind == NormKind::kLayer || a.mean.data == nullptr, "RMSNorm has no mean");
  TROUPE_CHECK(a.residual.data != nullptr || a.sum.data == nullptr || rows * cols == 0,
               "sum without a residual");
  TROUPE_CHECK(a.eps >= 0 && std::isfinite(a.eps), "eps", a.eps);
}

void validate(const NormBackward& a) {
  const int64_t rows = a.s.rows, cols = a.s.cols;
  const Dtype dtype = a.s.dtype;
  check_matrix(a.s, "s", rows, cols, dtype);
  check_matrix(a.weight, "weight", 1, cols, dtype);
  check_matrix(a.rstd, "rstd", rows, 1, wide(dtype));
  check_matrix(a.grad_y, "grad_y", rows, cols, dtype);
  check_matrix(a.grad_s.read(), "grad_s", rows, cols, dtype);
  check_optional(a.grad_weight.read(), "grad_weight", 1, cols, wide(dtype));
  check_optional(a.grad_bias.read(), "grad_bias", 1, cols, wide(dtype));
  check_optional(a.grad_sum, "grad_sum", rows, cols, dtype);
  if (a.kind == NormKind::kLayer) check_matrix(a.mean, "mean", rows, 1, wide(dtype));
  TROUPE_CHECK(cols > 0 || rows == 0, "rows of no columns");
  TROUPE_CHECK(a.workspace != nullptr || workspace_bytes(a) == 0, "workspace of",
               workspace_bytes(a), "bytes");
}

int64_t bytes_moved(const Norm& a) {
  const int64_t passes = a.residual.data == nullptr ? 2 : 4;
  return passes * a.x.rows * a.x.cols * size_bytes(a.x.dtype);
}

int64_t bytes_moved(const NormBackward& a) {
  const int64_t passes = a.grad_sum.data == nullptr ? 3 : 4;
  return passes * a.s.rows * a.s.cols * size_bytes(a.s.dtype);
}

int64_t workspace_bytes(const NormBackward& a) {
  const int64_t sums = (a.grad_weight.data != nullptr) + (a.grad_bias.data != nullptr);
  return sums * norm_ranges(a.s.rows).count * a.s.cols * size_bytes(wide(a.s.dtype));
}

void norm_ref(const Norm& a) {
  validate(a);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto x = a.x.as<T>(), weight = a.weight.as<T>();
    const auto y = a.y.as<T>();
    const int64_t D = x.cols;
    std::vector<double> s(D);
    for (int64_t r = 0; r < x.rows; ++r) {
      double mean = 0, variance = 0;
      for (int64_t d = 0; d < D; ++d) {
        s[d] = static_cast<W>(x(r, d));
        if (a.residual.data != nullptr) {
          T& sum = a.sum.as<T>()(r, d);
          sum = static_cast<T>(static_cast<W>(s[d] + static_cast<W>(a.residual.as<T>()(r, d))));
          s[d] = static_cast<W>(sum);
        }
        if (a.kind == NormKind::kLayer) mean += s[d] / static_cast<double>(D);
      }
      for (const double v : s) variance += (v - mean) * (v - mean) / static_cast<double>(D);
      const double rstd = 1 / std::sqrt(variance + a.eps);
      for (int64_t d = 0; d < D; ++d) {
        const double n = normalized<T>(s[d], mean, rstd, a.round_before_weight);
        const double b = a.bias.data == nullptr ? W(0) : static_cast<W>(a.bias.as<T>()(0, d));
        y(r, d) = static_cast<T>(static_cast<W>(n * static_cast<W>(weight(0, d)) + b));
      }
      if (a.mean.data != nullptr) a.mean.as<W>()(r, 0) = static_cast<W>(mean);
      if (a.rstd.data != nullptr) a.rstd.as<W>()(r, 0) = static_cast<W>(rstd);
    }
  });
}

void norm_backward_ref(const NormBackward& a) {
  validate(a);
  dispatch_float64(a.s.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto s = a.s.as<T>(), weight = a.weight.as<T>(), grad = a.grad_y.as<T>();
    const auto grad_s = a.grad_s.as<T>();
    const int64_t D = s.cols;
    std::vector<double> sum_weight(D), sum_bias(D), n(D), g(D);
    for (int64_t r = 0; r < s.rows; ++r) {
      const double mean = a.kind == NormKind::kLayer ? a.mean.as<W>()(r, 0) : W(0);
      const double rstd = a.rstd.as<W>()(r, 0);
      double sum_an = 0, sum_a = 0;
      for (int64_t d = 0; d < D; ++d) {
        const double value = static_cast<W>(s(r, d)), G = static_cast<W>(grad(r, d));
        n[d] = (value - mean) * rstd;
        g[d] = G * static_cast<W>(weight(0, d));
        sum_an += g[d] * n[d];
        if (a.kind == NormKind::kLayer) sum_a += g[d];
        sum_weight[d] += G * normalized<T>(value, mean, rstd, a.round_before_weight);
        sum_bias[d] += G;
      }
      for (int64_t d = 0; d < D; ++d) {
        const double around =
            a.grad_sum.data == nullptr ? W(0) : static_cast<W>(a.grad_sum.as<T>()(r, d));
        const double own =
            rstd * (g[d] - n[d] * sum_an / static_cast<double>(D) - sum_a / static_cast<double>(D));
        grad_s(r, d) = static_cast<T>(static_cast<W>(own + around));
      }
    }
    for (int64_t d = 0; d < D; ++d) {
      if (a.grad_weight.data != nullptr)
        a.grad_weight.as<W>()(0, d) = static_cast<W>(sum_weight[d]);
      if (a.grad_bias.data != nullptr) a.grad_bias.as<W>()(0, d) = static_cast<W>(sum_bias[d]);
    }
  });
}

}  // namespace troupe
