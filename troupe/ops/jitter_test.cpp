#include "troupe/ops/jitter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

const NoisePlace kPlace{{.seed = 0xfedcba9876543210u, .step = 3, .layer = 2}, 100};

class JitterOp : public testing::DeviceTest {};

TEST_P(JitterOp, R2_TwoRanksDrawWhatOneDraws) {
  const at::Tensor x = at::randn({10, 33}, device());
  const at::Tensor whole = jitter(x, 0.1, kPlace);
  const at::Tensor first = jitter(x.narrow(0, 0, 4), 0.1, kPlace);
  const at::Tensor second = jitter(x.narrow(0, 4, 6), 0.1, {kPlace.key, 104});
  EXPECT_TRUE(whole.equal(at::cat({first, second})));
  EXPECT_FALSE(whole.equal(jitter(x, 0.1, {{kPlace.key.seed, 4, 2}, 100})));
}

TEST_P(JitterOp, MF13_AnIndexNamesEachRowsToken) {
  const at::Tensor x = at::randn({10, 33}, device()).requires_grad_();
  const at::Tensor order = at::tensor({7, 0, 9, 4}, device().dtype(at::kLong));
  const NoisePlace some{kPlace.key, 0, order + 100};
  const at::Tensor part = jitter(x.index_select(0, order), 0.1, some);
  EXPECT_TRUE(part.equal(jitter(x, 0.1, kPlace).index_select(0, order)));
  part.sum().backward();
  const at::Tensor factors = jitter(at::ones_like(x), 0.1, kPlace);
  EXPECT_TRUE(x.grad().index_select(0, order).equal(factors.index_select(0, order)));
  EXPECT_TRUE(normal_noise(part, 1, "a", some)
                  .equal(normal_noise(x, 1, "a", kPlace).index_select(0, order)));
  TROUPE_EXPECT_REFUSAL(jitter(x, 0.1, some), "jitter: index");
}

TEST_P(JitterOp, R2_FlattensLeadingDimensions) {
  const at::Tensor x = at::randn({2, 5, 8}, device());
  EXPECT_TRUE(jitter(x, 0.1, kPlace).flatten(0, 1).equal(jitter(x.flatten(0, 1), 0.1, kPlace)));
}

TEST_P(JitterOp, E16_AnyStride) {
  const at::Tensor x = at::randn({8, 6}, device());
  EXPECT_TRUE(jitter(x.t(), 0.1, kPlace).equal(jitter(x.t().contiguous(), 0.1, kPlace)));
}

TEST_P(JitterOp, R2_GradientHasTheSameFactors) {
  const at::Tensor x = at::ones({20, 16}, device()).requires_grad_();
  const at::Tensor u = jitter(x, 0.2, kPlace);
  u.sum().backward();
  EXPECT_TRUE(x.grad().equal(u));
}

TEST_P(JitterOp, R3_NormalNoiseIsOfTheSizesOfItsExample) {
  const at::Tensor like = at::zeros({300, 40}, device().dtype(at::kBFloat16));
  const at::Tensor z = normal_noise(like, 1, "router_random", kPlace);
  EXPECT_EQ(z.sizes(), like.sizes());
  EXPECT_EQ(z.scalar_type(), at::kBFloat16);
  const at::Tensor wide = z.to(at::kDouble);
  EXPECT_NEAR(wide.mean().item<double>(), 0, 4 / std::sqrt(12000.0));
  EXPECT_NEAR((wide * wide).mean().item<double>(), 1, 0.06);
  EXPECT_FALSE(z.equal(normal_noise(like, 1, "router_biased", kPlace)));
}

TEST_P(JitterOp, E1_NoTokens) {
  EXPECT_EQ(jitter(at::zeros({0, 8}, device()), 0.1, kPlace).size(0), 0);
}
INSTANTIATE_TEST_SUITE_P(On, JitterOp, testing::devices(), testing::device_name);

TEST(JitterOp, AgreesWithTheNumericJacobian) {
  testing::expect_gradients([](const Tensors& in) { return jitter(in[0], 0.3, kPlace); },
                            {at::randn({5, 7}, at::kDouble).requires_grad_()});
}

TEST(JitterOp, RefusalsNameTheArgument) {
  TROUPE_EXPECT_REFUSAL(jitter(at::zeros({2, 2}, at::kLong), 0.1, kPlace), "jitter: x");
  TROUPE_EXPECT_REFUSAL(jitter(at::zeros({2, 2}), 1.5, kPlace), "epsilon");
  TROUPE_EXPECT_REFUSAL(normal_noise(at::zeros({2}), 1, "a", kPlace), "normal_noise: like");
  TROUPE_EXPECT_REFUSAL(normal_noise(at::zeros({2, 2}), -1, "a", kPlace), "std");
}

}  // namespace
}  // namespace troupe
