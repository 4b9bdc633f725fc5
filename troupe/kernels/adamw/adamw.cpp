// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/adamw/adamw.h"

#include <cmath>

#include "troupe/core/split_f32.h"

namespace troupe {

void validate(const AdamW& a) {
  const int64_t n = a.grad.cols;
  const bool f64 = a.param.dtype == Dtype::kF64;
  check_matrix(a.grad, "grad", 1, n, a.grad.dtype);
  if (in_halves(a)) {
    TROUPE_CHECK(a.param.rows == 0 && !f64, "remainder is given, and param too");
    TROUPE_CHECK(a.remainder.rows == 1 && a.remainder.cols == n && a.remainder.ld >= n,
                 "remainder is", a.remainder.rows, "x", a.remainder.cols, "and must be 1 x", n);
    TROUPE_CHECK(a.remainder.data != nullptr || n == 0, "remainder is missing");
    check_matrix(a.copy.read(), "copy", 1, n, Dtype::kBF16);
  } else {
    check_matrix(a.param.read(), "param", 1, n, f64 ? Dtype::kF64 : Dtype::kF32);
  }
  check_matrix(a.m.read(), "m", 1, n, a.m.dtype);
  check_matrix(a.v.read(), "v", 1, n, a.m.dtype);
  TROUPE_CHECK((a.grad.dtype == Dtype::kF64) == f64 && (a.m.dtype == Dtype::kF64) == f64,
               "param is", name(a.param.dtype), "grad", name(a.grad.dtype), "m", name(a.m.dtype));
  TROUPE_CHECK(a.m.dtype != Dtype::kF16, "moments in f16 would overflow");
  if (a.copy.data != nullptr) {
    check_matrix(a.copy.read(), "copy", 1, n, a.copy.dtype);
    TROUPE_CHECK(size_bytes(a.copy.dtype) == 2 && !f64, "a copy in", name(a.copy.dtype));
  }
  TROUPE_CHECK(a.step > 0, "step", a.step);
  TROUPE_CHECK(0 <= a.beta1 && a.beta1 < 1 && 0 <= a.beta2 && a.beta2 < 1, "betas", a.beta1,
               a.beta2);
  TROUPE_CHECK(a.eps >= 0 && std::isfinite(a.eps), "eps", a.eps);
  TROUPE_CHECK(std::isfinite(a.lr) && std::isfinite(a.weight_decay), "lr", a.lr, "weight_decay",
               a.weight_decay);
}

int64_t bytes_moved(const AdamW& a) {
  const int64_t copy = a.copy.data == nullptr ? 0 : size_bytes(a.copy.dtype);
  const int64_t param = in_halves(a) ? 2 * (2 + 2) : 2 * size_bytes(a.param.dtype) + copy;
  return a.grad.cols * (param + 4 * size_bytes(a.m.dtype) + size_bytes(a.grad.dtype));
}

AdamWStep<double> adamw_step(const AdamW& a) {
  const auto step = static_cast<double>(a.step);
  return {.lr = a.lr,
          .beta1 = a.beta1,
          .rest1 = 1 - a.beta1,
          .beta2 = a.beta2,
          .rest2 = 1 - a.beta2,
          .unbias1 = 1 / (1 - std::pow(a.beta1, step)),
          .unbias2 = 1 / (1 - std::pow(a.beta2, step)),
          .eps = a.eps,
          .weight_decay = a.weight_decay};
}

void adamw_ref(const AdamW& a) {
  validate(a);
  const double scale = a.grad_scale == nullptr ? 1 : *a.grad_scale;
  if (!std::isfinite(scale)) return;
  const auto element = [](const MatRef& x, int64_t i) {
    return dispatch_float64(
        x.dtype, [&]<class T>() -> double { return static_cast<Wide<T>>(x.as<T>()(0, i)); });
  };
  const auto store = [](const MutRef& x, int64_t i, double value) {
    dispatch_float64(
        x.dtype, [&]<class T>() { x.as<T>()(0, i) = static_cast<T>(static_cast<Wide<T>>(value)); });
  };
  const auto param = [&](int64_t i) -> double {
    if (!in_halves(a)) return element(a.param.read(), i);
    return join_f32(a.copy.as<BF16>()(0, i).bits, a.remainder(0, i));
  };
  const auto store_param = [&](int64_t i, double value) {
    if (in_halves(a)) {
      const SplitF32 s = split_f32(static_cast<float>(value));
      a.copy.as<BF16>()(0, i).bits = s.value;
      a.remainder(0, i) = s.low;
      return;
    }
    store(a.param, i, value);
    if (a.copy.data != nullptr) store(a.copy, i, element(a.param.read(), i));
  };
  const auto step = static_cast<double>(a.step);
  for (int64_t i = 0; i < a.grad.cols; ++i) {
    const double g = element(a.grad, i) * scale, p = param(i);
    const double m = a.beta1 * element(a.m.read(), i) + (1 - a.beta1) * g;
    const double v = a.beta2 * element(a.v.read(), i) + (1 - a.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(a.beta1, step));
    const double v_hat = v / (1 - std::pow(a.beta2, step));
    const double next = p - a.lr * (m_hat / (std::sqrt(v_hat) + a.eps) + a.weight_decay * p);
    store(a.m, i, m);
    store(a.v, i, v);
    store_param(i, next);
  }
}

}  // namespace troupe
