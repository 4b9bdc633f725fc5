#include "troupe/ops/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

const char* const kKinds[] = {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"};

at::Tensor expected(const std::string& kind, const at::Tensor& g) {
  if (kind == "silu") return at::silu(g);
  if (kind == "gelu") return at::gelu(g);
  if (kind == "gelu_tanh") return at::gelu(g, "tanh");
  if (kind == "quick_gelu") return g * at::sigmoid(1.702 * g);
  return kind == "relu" ? at::relu(g) : at::relu(g) * at::relu(g);
}

class ActivationOp : public testing::DeviceTest {};

TEST_P(ActivationOp, X1_X3_AgreesWithAten) {
  const at::Tensor h = at::randn({5, 14}, device()), score = at::randn({5}, device());
  for (const char* kind : kKinds) {
    const at::Tensor g = h.narrow(1, 0, 7), v = h.narrow(1, 7, 7);
    const at::Tensor gated = activation(h, {.kind = kind}, {.score_R = score});
    EXPECT_TRUE(at::allclose(gated, score.unsqueeze(1) * expected(kind, g) * v, 1e-5, 1e-6))
        << kind;
    const at::Tensor plain = activation(h, {.kind = kind, .gated = false});
    EXPECT_TRUE(at::allclose(plain, expected(kind, h), 1e-5, 1e-6)) << kind;
  }
}

TEST_P(ActivationOp, TakesAnyStridesAndLeadingDimensions) {
  const at::Tensor h = at::randn({6, 2, 3}, device()).transpose(0, 2);  // [3, 2, 6]
  const at::Tensor got = activation(h, {});
  const at::Tensor want = activation(h.contiguous(), {});
  EXPECT_EQ(got.sizes(), at::IntArrayRef({3, 2, 3}));
  EXPECT_TRUE(got.equal(want));
}

TEST_P(ActivationOp, E1_NoRowsGiveNoRows) {
  at::Tensor h = at::randn({0, 8}, device()).requires_grad_();
  const at::Tensor u = activation(h, {});
  EXPECT_EQ(u.sizes(), at::IntArrayRef({0, 4}));
  u.sum().backward();
  EXPECT_EQ(h.grad().sizes(), h.sizes());
}

TEST_P(ActivationOp, RowsWithoutAnExpertGiveZeros) {
  at::Tensor h = at::randn({4, 6}, device()).requires_grad_();
  const at::Tensor offset = at::tensor({0, 1, 3}, at::kInt).to(h.device());
  const at::Tensor u = activation(h, {}, {.expert_offset = offset});
  u.sum().backward();
  EXPECT_TRUE(u.narrow(0, 3, 1).eq(0).all().item<bool>());
  EXPECT_TRUE(h.grad().narrow(0, 3, 1).eq(0).all().item<bool>());
  EXPECT_FALSE(u.narrow(0, 0, 3).eq(0).any().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(On, ActivationOp, testing::devices(), testing::device_name);

at::Tensor input(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

TEST(ActivationGradient, X2_AgreesWithTheNumericJacobian) {
  for (const char* kind : kKinds) {
    for (const bool gated : {true, false}) {
      const ActivationOptions o{
          .kind = kind, .gated = gated, .clamp = 1.5, .offset = gated ? 1.0 : 0.0};
      testing::expect_gradients(
          [&](const Tensors& x) { return activation(x[0], o, {.score_R = x[1]}); },
          {input({4, 6}), input({4})});
    }
  }
}

TEST(ActivationGradient, X8_FrozenInputsGetNoneAndChangeNone) {
  const at::Tensor h = input({3, 4}), score = input({3});
  activation(h, {}, {.score_R = score}).sum().backward();
  const at::Tensor h_alone = h.detach().clone().requires_grad_();
  activation(h_alone, {}, {.score_R = score.detach()}).sum().backward();
  EXPECT_TRUE(h_alone.grad().equal(h.grad()));
  const at::Tensor score_alone = score.detach().clone().requires_grad_();
  activation(h.detach(), {}, {.score_R = score_alone}).sum().backward();
  EXPECT_TRUE(score_alone.grad().equal(score.grad()));
}

TEST(ActivationRefusal, NamesTheArgument) {
  const at::Tensor h = at::ones({2, 4});
  TROUPE_EXPECT_REFUSAL(activation(at::ones({2, 3}), {}), "activation: h");
  TROUPE_EXPECT_REFUSAL(activation(h, {.kind = "swish"}), "swish");
  TROUPE_EXPECT_REFUSAL(activation(h, {}, {.score_R = at::ones({3})}), "activation: score");
  TROUPE_EXPECT_REFUSAL(activation(h, {}, {.score_R = at::ones({2}, at::kDouble)}),
                        "activation: score");
  TROUPE_EXPECT_REFUSAL(activation(h, {}, {.expert_offset = at::ones({2})}),
                        "activation: expert_offset");
  TROUPE_EXPECT_REFUSAL(activation(h.to(at::kInt), {}), "activation: h");
  TROUPE_EXPECT_REFUSAL(activation(h, {.clamp = -1}), "clamp");
}

}  // namespace
}  // namespace troupe
