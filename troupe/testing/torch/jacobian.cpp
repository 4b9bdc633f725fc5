#include "troupe/testing/torch/jacobian.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "troupe/core/check.h"

namespace troupe::testing {
namespace {

at::Tensor weighed(const at::Tensor& y) {
  const at::Tensor w = at::arange(y.numel(), at::kDouble).add(1).mul(1.7).cos().add(0.3);
  return (y.reshape({-1}).to(at::kDouble) * w).sum();
}

at::Tensor numeric_gradient(const Function& f, const Tensors& inputs, at::Tensor x, double step) {
  const at::NoGradGuard no_grad;
  at::Tensor grad = at::zeros_like(x, at::MemoryFormat::Contiguous);
  at::Tensor flat = x.detach().view(-1);
  for (int64_t i = 0; i < x.numel(); ++i) {
    double* value = flat.mutable_data_ptr<double>() + i;
    const double kept = *value;
    *value = kept + step;
    const double high = weighed(f(inputs)).item<double>();
    *value = kept - step;
    const double low = weighed(f(inputs)).item<double>();
    *value = kept;
    grad.mutable_data_ptr<double>()[i] = (high - low) / (2 * step);
  }
  return grad;
}

}  // namespace

double gradient_error(const Function& f, const Tensors& inputs, double step) {
  for (const at::Tensor& x : inputs) {
    if (x.defined() && x.grad().defined()) x.mutable_grad().reset();
  }
  weighed(f(inputs)).backward();
  double worst = 0;
  for (const at::Tensor& x : inputs) {
    if (!x.defined() || !x.requires_grad()) continue;
    TROUPE_CHECK(x.scalar_type() == at::kDouble && x.is_contiguous(), "fp64 leaves only");
    const at::Tensor want = numeric_gradient(f, inputs, x, step);
    if (want.numel() == 0) continue;
    const double size = std::max(1.0, want.abs().max().item<double>());
    const at::Tensor got = x.grad().defined() ? x.grad() : at::zeros_like(x);
    const double error = (got - want).abs().max().item<double>() / size;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

void expect_gradients(const Function& f, const Tensors& inputs, double bound) {
  EXPECT_LT(gradient_error(f, inputs), bound);
}

}  // namespace troupe::testing
