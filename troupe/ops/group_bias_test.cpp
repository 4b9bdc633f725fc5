#include "troupe/ops/group_bias.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

// Experts with 2, 0 and 3 rows; a sixth row has none.
at::Tensor offsets() {
  return at::tensor({0, 2, 2, 5}, at::kInt);
}

class GroupBiasOp : public testing::DeviceTest {};

TEST_P(GroupBiasOp, X6_EachRowGetsItsExpertsBias) {
  const at::Tensor x = at::randn({6, 7}, device()), bias = at::randn({3, 7}, device());
  const at::Tensor score = at::randn({6}, device());
  const at::Tensor expert = at::tensor({0, 0, 2, 2, 2}, at::kLong).to(x.device());
  const at::Tensor rows = at::index_select(bias, 0, expert);
  const at::Tensor y = group_bias(x, bias, offsets().to(x.device()));
  EXPECT_TRUE(at::allclose(y.narrow(0, 0, 5), x.narrow(0, 0, 5) + rows));
  EXPECT_TRUE(y[5].equal(x[5]));
  const at::Tensor scored = group_bias(x, bias, offsets().to(x.device()), score);
  const at::Tensor want = x.narrow(0, 0, 5) + score.narrow(0, 0, 5).unsqueeze(1) * rows;
  EXPECT_TRUE(at::allclose(scored.narrow(0, 0, 5), want, 1e-5, 1e-6));
}

TEST_P(GroupBiasOp, E2_AnEmptyExpertsGradientIsZero) {
  const at::Tensor x = at::randn({6, 7}, device());
  at::Tensor bias = at::randn({3, 7}, device()).requires_grad_();
  group_bias(x.t().contiguous().t(), bias, offsets().to(x.device())).sum().backward();
  EXPECT_TRUE(bias.grad()[1].eq(0).all().item<bool>());
  EXPECT_TRUE(bias.grad()[2].eq(3).all().item<bool>());
}

TEST_P(GroupBiasOp, E1_NoRowsGiveNoRows) {
  const at::Tensor x = at::randn({0, 7}, device());
  at::Tensor bias = at::randn({3, 7}, device()).requires_grad_();
  const at::Tensor none = at::tensor({0, 0, 0, 0}, at::kInt).to(x.device());
  group_bias(x, bias, none).sum().backward();
  EXPECT_TRUE(bias.grad().eq(0).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(On, GroupBiasOp, testing::devices(), testing::device_name);

TEST(GroupBiasGradient, X6_AgreesWithTheNumericJacobian) {
  const auto input = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).requires_grad_();
  };
  testing::expect_gradients(
      [](const Tensors& x) { return group_bias(x[0], x[1], offsets(), x[2]); },
      {input({6, 4}), input({3, 4}), input({6})});
  testing::expect_gradients([](const Tensors& x) { return group_bias(x[0], x[1], offsets()); },
                            {at::randn({6, 4}, at::kDouble), input({3, 4})});
}

TEST(GroupBiasRefusal, NamesTheArgument) {
  const at::Tensor x = at::ones({6, 4}), bias = at::ones({3, 4});
  TROUPE_EXPECT_REFUSAL(group_bias(x[0], bias, offsets()), "group_bias: x");
  TROUPE_EXPECT_REFUSAL(group_bias(x, at::ones({3, 5}), offsets()), "group_bias: bias");
  TROUPE_EXPECT_REFUSAL(group_bias(x, bias.to(at::kBFloat16), offsets()), "group_bias: bias");
  TROUPE_EXPECT_REFUSAL(group_bias(x, at::ones({4, 4}), offsets()), "group_bias: expert_offset");
  TROUPE_EXPECT_REFUSAL(group_bias(x, bias, offsets().to(at::kLong)), "group_bias: expert_offset");
  TROUPE_EXPECT_REFUSAL(group_bias(x, bias, offsets(), at::ones({5})), "group_bias: score");
}

}  // namespace
}  // namespace troupe
