#include "troupe/nn/parts/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

Linear linear(int64_t out, int64_t in, bool bias) {
  Linear l({out, in, {.kind = Init::kNormal, .std = 1}, bias});
  l.weight.value = at::randn({out, in}, at::kDouble).requires_grad_();
  if (bias) l.bias->value = at::randn({out}, at::kDouble).requires_grad_();
  return l;
}

TEST(Linear, JointProductIsThePartsSideBySideWithTheirGradients) {
  for (const bool bias : {false, true}) {
    const Linear a = linear(3, 4, bias), b = linear(2, 4, bias);
    const at::Tensor x = at::randn({5, 4}, at::kDouble).requires_grad_();
    EXPECT_TRUE(joined_linear(x, {&a, &b}).allclose(at::cat({a.forward(x), b.forward(x)}, 1)));
    testing::Tensors leaves = {x, a.weight.value, b.weight.value};
    if (bias) leaves.insert(leaves.end(), {a.bias->value, b.bias->value});
    testing::expect_gradients(
        [&](const testing::Tensors&) {
          return joined_linear(x, {&a, &b});
        },
        leaves);
  }
}

// As a ParamStore has them; then no copy is made, and the product is the same.
TEST(Linear, WeightsThatLieOneBehindTheOtherAreJoinedWhereTheyLie) {
  Linear a = linear(3, 4, false), b = linear(2, 4, false);
  const at::Tensor x = at::randn({5, 4}, at::kDouble).requires_grad_();
  const at::Tensor apart = joined_linear(x, {&a, &b});
  const at::Tensor g = at::randn(apart.sizes(), at::kDouble);
  apart.backward(g);
  const at::Tensor grads = at::cat({x.grad(), a.weight.value.grad(), b.weight.value.grad()});
  const at::Tensor buffer = at::cat({a.weight.value, b.weight.value}).detach();
  a.weight.value = buffer.narrow(0, 0, 3).detach().requires_grad_();
  b.weight.value = buffer.narrow(0, 3, 2).detach().requires_grad_();
  x.mutable_grad().reset();
  const at::Tensor together = joined_linear(x, {&a, &b});
  EXPECT_TRUE(at::equal(together, apart));
  together.backward(g);
  EXPECT_TRUE(at::equal(at::cat({x.grad(), a.weight.value.grad(), b.weight.value.grad()}), grads));
  const at::Tensor swapped = joined_linear(x, {&b, &a});  // beside each other, in another order
  EXPECT_TRUE(swapped.narrow(1, 0, 2).allclose(apart.narrow(1, 3, 2)));
  EXPECT_TRUE(swapped.narrow(1, 2, 3).allclose(apart.narrow(1, 0, 3)));
}

TEST(Linear, X8_AFrozenPartGetsNoGradientAndChangesNoOther) {
  Linear a = linear(3, 4, false);
  const Linear b = linear(2, 4, false);
  const at::Tensor x = at::randn({5, 4}, at::kDouble).requires_grad_();
  joined_linear(x, {&a, &b}).sum().backward();
  const at::Tensor want = b.weight.value.grad().clone();
  b.weight.value.mutable_grad().reset();
  a.weight.value = a.weight.value.detach();
  joined_linear(x, {&a, &b}).sum().backward();
  EXPECT_FALSE(a.weight.value.grad().defined());
  EXPECT_TRUE(at::equal(b.weight.value.grad(), want));
}

// Parts whose rows are whole groups of 128 are rounded as if each were alone.
TEST(Linear, Q8_18_AJointProductInFp8IsThePartsSideBySideWithTheirGradients) {
  for (const bool bias : {false, true}) {
    Linear a = linear(256, 128, bias), b = linear(128, 128, bias);
    for (Linear* l : {&a, &b}) {
      l->weight.value = l->weight.value.detach().to(at::kFloat).requires_grad_();
      if (bias) l->bias->value = l->bias->value.detach().to(at::kFloat).requires_grad_();
    }
    const at::Tensor x = at::randn({50, 128}, at::kFloat).requires_grad_();
    const at::Tensor dy = at::randn({50, 384}, at::kFloat);
    const JoinedOptions fp8{.fp8 = Fp8Linear{}};
    const auto grads = [&] {
      std::vector<at::Tensor> out = {x.grad(), a.weight.value.grad(), b.weight.value.grad()};
      if (bias) out.insert(out.end(), {a.bias->value.grad(), b.bias->value.grad()});
      for (at::Tensor& g : out) g = g.clone();
      for (const at::Tensor& t : {x, a.weight.value, b.weight.value}) t.mutable_grad().reset();
      if (bias) a.bias->value.mutable_grad().reset(), b.bias->value.mutable_grad().reset();
      return out;
    };
    const at::Tensor y = joined_linear(x, {&a, &b}, fp8);
    y.backward(dy);
    const auto got = grads();
    const at::Tensor apart = at::cat({joined_linear(x, {&a}, fp8), joined_linear(x, {&b}, fp8)}, 1);
    apart.backward(dy);
    const auto want = grads();
    EXPECT_TRUE(at::equal(y, apart));
    EXPECT_TRUE(got[0].allclose(want[0], 1e-4, 1e-4));  // of one sum, and of two
    for (size_t i = 1; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    EXPECT_FALSE(y.allclose(joined_linear(x, {&a, &b}), 1e-4, 1e-4)) << "nothing was rounded";
  }
}

TEST(Linear, BiasesOfSomePartsAloneAreRefused) {
  const Linear a = linear(3, 4, true), b = linear(2, 4, false);
  TROUPE_EXPECT_REFUSAL(joined_linear(at::randn({5, 4}, at::kDouble), {&a, &b}), "biases of 1");
}

}  // namespace
}  // namespace troupe
