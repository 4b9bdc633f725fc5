#include "troupe/ops/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

// y = x * w (elementwise), with the given derivative, so that a wrong one can be planted.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, double factor = 1) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = x * w;
  }
  record({.name = "product",
          .inputs = {x, w},
          .outputs = {y},
          .saved = {x, w},
          .backward = [factor](const Gradients& g) -> TensorList {
            return {g.needs[0] ? g.outputs[0] * g.saved[1] * factor : at::Tensor(),
                    g.needs[1] ? g.outputs[0] * g.saved[0] : at::Tensor()};
          }});
  return y;
}

at::Tensor input() {
  return at::randn({3, 2}, at::kDouble).requires_grad_();
}

TEST(Autograd, AgreesWithTheNumericJacobian) {
  testing::expect_gradients([](const TensorList& x) { return product(x[0], x[1]); },
                            {input(), input()});
}

TEST(Autograd, TheNumericJacobianFindsAWrongDerivative) {
  EXPECT_GT(testing::gradient_error([](const TensorList& x) { return product(x[0], x[1], 1.001); },
                                    {input(), input()}),
            1e-4);
}

TEST(Autograd, RecordsNothingWithoutNeed) {
  EXPECT_FALSE(product(at::ones({2}), at::ones({2})).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(product(input(), input()).requires_grad());
}

TEST(Autograd, ComputesOnlyTheGradientsThatAreWanted) {
  const at::Tensor x = input(), w = at::randn({3, 2}, at::kDouble);
  product(x, w).sum().backward();
  EXPECT_TRUE(x.grad().equal(w));
  EXPECT_FALSE(w.grad().defined());
}

TEST(Autograd, RefusesASecondDerivative) {
  const at::Tensor x = input();
  product(x, x).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_THROW(x.grad().sum().backward(), std::exception);
}

}  // namespace
}  // namespace troupe
