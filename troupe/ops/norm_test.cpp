#include "troupe/ops/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "troupe/ops/support/kept.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

at::Tensor rms(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt((x * x).mean(-1, true) + eps) * weight;
}

class NormOp : public testing::DeviceTest {};

TEST_P(NormOp, AgreesWithAten) {
  const at::Tensor x = at::randn({2, 5, 33}, device()), other = at::randn({2, 5, 33}, device());
  const at::Tensor weight = at::randn({33}, device()), bias = at::randn({33}, device());
  EXPECT_TRUE(at::allclose(norm(x, weight, {}, {}), rms(x, weight, 1e-5), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(norm(x, weight, bias, {.kind = "layer"}),
                           at::layer_norm(x, {33}, weight, bias), 1e-5, 1e-6));
  const auto [y, sum] = add_norm(x, other, weight, {}, {});
  EXPECT_TRUE(sum.equal(x + other));
  EXPECT_TRUE(at::allclose(y, rms(x + other, weight, 1e-5), 1e-5, 1e-6));
}

TEST_P(NormOp, TakesAnyStrides) {
  const at::Tensor x = at::randn({8, 3}, device()).t(), weight = at::randn({16}, device());
  const at::Tensor every_second = weight.slice(0, 0, 16, 2);
  EXPECT_TRUE(
      norm(x, every_second, {}, {}).equal(norm(x.contiguous(), every_second.contiguous(), {}, {})));
}

TEST_P(NormOp, E1_NoRowsGiveZeroGradients) {
  at::Tensor x = at::randn({0, 8}, device()).requires_grad_();
  at::Tensor weight = at::randn({8}, device()).requires_grad_();
  norm(x, weight, {}, {}).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_TRUE(weight.grad().eq(0).all().item<bool>());
}

TEST_P(NormOp, HalfPrecisionGradientsHaveTheParametersType) {
  at::Tensor x = at::randn({4, 8}, device().dtype(at::kBFloat16)).requires_grad_();
  at::Tensor weight = at::ones({8}, device().dtype(at::kBFloat16)).requires_grad_();
  norm(x, weight, {}, {.kind = "rms_rounded"}).sum().backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
}

INSTANTIATE_TEST_SUITE_P(On, NormOp, testing::devices(), testing::device_name);

at::Tensor norm_input(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

TEST(NormGradient, AgreesWithTheNumericJacobian) {
  for (const char* kind : {"rms", "layer"}) {
    testing::expect_gradients(
        [&](const Tensors& x) { return norm(x[0], x[1], x[2], {.kind = kind}); },
        {norm_input({3, 5}), norm_input({5}), norm_input({5})});
    // Both results of the fused form, and the way around the norm.
    testing::expect_gradients(
        [&](const Tensors& x) {
          const auto [y, sum] = add_norm(x[0], x[1], x[2], {}, {.kind = kind});
          return y * 2 + sum * sum;
        },
        {norm_input({3, 5}), norm_input({3, 5}), norm_input({5})});
  }
}

// On the CPU who reads the result keeps none of it; what backward makes again has the same bits.
TEST(NormGradient, TheResultIsMadeAgainForItsReadersBackward) {
  for (const char* kind : {"rms", "rms_rounded", "layer"}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto leaf = [&](at::IntArrayRef sizes) {
        return at::randn(sizes).to(type).requires_grad_();
      };
      const at::Tensor x = leaf({6, 33}), r = leaf({6, 33}), w = leaf({33}), b = leaf({33});
      at::Tensor y = add_norm(x, r, w, b, {.kind = kind}).first;
      const at::Tensor want = y.detach().clone(), w2 = leaf({33});
      const at::Tensor z = norm(y, w2, {}, {});  // an operator that saves y
      const auto held = y.storage().getWeakStorageImpl();
      y.reset();
      EXPECT_TRUE(held.expired()) << kind;
      EXPECT_TRUE(kept_for_backward(z)[0].equal(want)) << kind;
      z.sum().backward();
      EXPECT_TRUE(b.grad().defined());
    }
  }
}

TEST(NormGradient, X8_FrozenInputsGetNone) {
  const at::Tensor x = at::randn({3, 5}, at::kDouble), weight = norm_input({5});
  norm(x, weight, {}, {}).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  const at::Tensor free = norm_input({3, 5}), frozen = at::ones({5}, at::kDouble);
  norm(free, frozen, {}, {}).sum().backward();
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_TRUE(free.grad().defined());
}

TEST(NormRefusal, NamesTheArgument) {
  const at::Tensor x = at::ones({2, 4}), weight = at::ones({4});
  TROUPE_EXPECT_REFUSAL(norm(x, at::ones({5}), {}, {}), "norm: weight");
  TROUPE_EXPECT_REFUSAL(norm(x, weight.to(at::kDouble), {}, {}), "norm: weight");
  TROUPE_EXPECT_REFUSAL(norm(x, weight, at::ones({3}), {}), "norm: bias");
  TROUPE_EXPECT_REFUSAL(norm(x, weight, {}, {.kind = "batch"}), "batch");
  TROUPE_EXPECT_REFUSAL(add_norm(x, at::ones({1, 4}), weight, {}, {}), "norm: residual");
  TROUPE_EXPECT_REFUSAL(norm(x, weight, {}, {.eps = -1}), "eps");
}

}  // namespace
}  // namespace troupe
