// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/adamw/adamw.h"

#include <cmath>

namespace troupe {

void validate(const AdamW& a) {
  const int64_t n = a.param.cols;
  const bool f64 = a.param.dtype == Dtype::kF64;
  check_matrix(a.param.read(), "param", 1, n, f64 ? Dtype::kF64 : Dtype::kF32);
  check_matrix(a.grad, "grad", 1, n, a.grad.dtype);
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
  return a.param.cols * (2 * size_bytes(a.param.dtype) + 4 * size_bytes(a.m.dtype) +
                         size_bytes(a.grad.dtype) + copy);
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
  const auto step = static_cast<double>(a.step);
  for (int64_t i = 0; i < a.param.cols; ++i) {
    const double g = element(a.grad, i) * scale, p = element(a.param.read(), i);
    const double m = a.beta1 * element(a.m.read(), i) + (1 - a.beta1) * g;
    const double v = a.beta2 * element(a.v.read(), i) + (1 - a.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(a.beta1, step));
    const double v_hat = v / (1 - std::pow(a.beta2, step));
    const double next = p - a.lr * (m_hat / (std::sqrt(v_hat) + a.eps) + a.weight_decay * p);
    store(a.m, i, m);
    store(a.v, i, v);
    store(a.param, i, next);
    if (a.copy.data != nullptr) store(a.copy, i, element(a.param.read(), i));
  }
}

}  // namespace troupe
