#include "troupe/ops/expert_choice.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

class ExpertChoiceOp : public testing::DeviceTest {};

TEST_P(ExpertChoiceOp, R13_EqualsTopkOfAtenByColumn) {
  const at::Tensor z = at::randn({200, 8}, device());
  const ExpertChoiceResult r = expert_choice(z, {.rule = {.rho = 2}});
  const at::Tensor s = at::softmax(z, 1);
  const at::Tensor best = std::get<1>(at::topk(s, 50, 0));
  const at::Tensor taken = at::zeros({200, 8}, z.options()).scatter_(0, best, 1);
  EXPECT_TRUE(r.ids_TE.ge(0).equal(taken.gt(0)));
  EXPECT_LT((r.weights_TE - s * taken).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(r.counts_E.eq(50).all().item<bool>());
  const at::Tensor lse = at::logsumexp(z, {1});
  EXPECT_NEAR((lse * lse).sum().item<double>() / r.lse_squares.item<double>(), 1, 1e-5);
}

TEST_P(ExpertChoiceOp, G3_MaskedTokensAreNeverTaken) {
  const at::Tensor z = at::randn({60, 4}, device());
  const at::Tensor valid = at::arange(60, device()).lt(40);
  const ExpertChoiceResult masked = expert_choice(z, {.rule = {.rho = 1}, .valid_T = valid});
  const ExpertChoiceResult alone = expert_choice(z.narrow(0, 0, 40), {.rule = {.rho = 1}});
  EXPECT_TRUE(masked.ids_TE.narrow(0, 40, 20).eq(-1).all().item<bool>());
  EXPECT_TRUE(masked.weights_TE.narrow(0, 0, 40).equal(alone.weights_TE));
}

TEST_P(ExpertChoiceOp, R15_Replay) {
  const at::Tensor z = at::randn({60, 4}, device());
  const ExpertChoiceResult first = expert_choice(z, {.rule = {.rho = 1, .normalize = true}});
  const ExpertChoiceResult again =
      expert_choice(z, {.rule = {.rho = 0, .normalize = true}, .given_ids_TE = first.ids_TE});
  EXPECT_TRUE(again.weights_TE.equal(first.weights_TE));
  EXPECT_TRUE(again.counts_E.equal(first.counts_E));
}

TEST_P(ExpertChoiceOp, E1_NoTokens) {
  const at::Tensor z = at::zeros({0, 4}, device()).requires_grad_();
  const ExpertChoiceResult r = expert_choice(z, {.rule = {.rho = 1}});
  (r.weights_TE.sum() + r.lse_squares).backward();
  EXPECT_EQ(r.counts_E.sum().item<int64_t>(), 0);
  EXPECT_EQ(z.grad().size(0), 0);
}

TEST_P(ExpertChoiceOp, E16_AnyStride) {
  const at::Tensor z = at::randn({6, 60}, device()).t();
  EXPECT_TRUE(expert_choice(z, {}).weights_TE.equal(expert_choice(z.contiguous(), {}).weights_TE));
}
INSTANTIATE_TEST_SUITE_P(On, ExpertChoiceOp, testing::devices(), testing::device_name);

TEST(ExpertChoiceOp, AgreesWithTheNumericJacobian) {
  for (const ExpertChoiceRule& rule : {ExpertChoiceRule{.rho = 2},
                                       {.score = Score::kSigmoid, .rho = 1.5, .normalize = true},
                                       {.score = Score::kSqrtSoftplus, .rho = 1, .scale = 3}}) {
    testing::expect_gradients(
        [&](const Tensors& in) {
          const ExpertChoiceResult r = expert_choice(in[0], {.rule = rule});
          return at::cat({r.weights_TE.flatten(), r.lse_squares.reshape({1}) * 0.01});
        },
        {at::randn({9, 5}, at::kDouble).requires_grad_()});
  }
}

TEST(ExpertChoiceOp, X8_FrozenLogitsHaveNoGraph) {
  EXPECT_FALSE(expert_choice(at::randn({9, 5}), {}).weights_TE.requires_grad());
}

TEST(ExpertChoiceOp, RefusalsNameTheArgument) {
  const at::Tensor z = at::randn({6, 4});
  TROUPE_EXPECT_REFUSAL(expert_choice(z[0], {}), "expert_choice: logits");
  TROUPE_EXPECT_REFUSAL(expert_choice(z.to(at::kInt), {}), "expert_choice: logits");
  TROUPE_EXPECT_REFUSAL(expert_choice(z, {.valid_T = at::zeros({5}, at::kBool)}),
                        "expert_choice: valid");
  TROUPE_EXPECT_REFUSAL(expert_choice(z, {.given_ids_TE = at::zeros({6, 3}, at::kInt)}),
                        "expert_choice: given_ids");
  TROUPE_EXPECT_REFUSAL(expert_choice(z, {.rule = {.rho = 5}}), "rho 5 of 4");
}

}  // namespace
}  // namespace troupe
