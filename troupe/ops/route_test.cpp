#include "troupe/ops/route.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

const bool kHasCuda = has_cuda();  // before any test makes PyTorch ask (ops/support/cuda_plugin.h)

at::Tensor logits(int64_t T, int64_t E, at::ScalarType type = at::kDouble) {
  at::manual_seed(8);
  return at::randn({T, E}, at::kDouble).to(type).requires_grad_();
}

RouteOptions options(Score score, Weighting weighting, int64_t k, int64_t sequences = 1) {
  RouteOptions o;
  o.rule = {.choices = k, .score = score, .weighting = weighting, .norm = 2, .scale = 2.5f};
  o.sequences = sequences;
  return o;
}

TEST(RouteOp, R4_R5_EqualsSoftmaxAndTopkOfAten) {
  const at::Tensor z = logits(37, 12);
  const at::Tensor s = at::softmax(z, 1);
  const auto [best, ids] = at::topk(s, 3, 1);
  const RouteResult raw = route(z, options(Score::kSoftmax, Weighting::kRaw, 3));
  EXPECT_TRUE(raw.ids_TK.to(at::kLong).equal(ids));
  EXPECT_LT((raw.weights_TK - best * 2.5).abs().max().item<double>(), 1e-12);
  const RouteResult chosen = route(z, options(Score::kSoftmax, Weighting::kChosen, 3));
  EXPECT_LT((chosen.weights_TK.sum(1) - 2.5).abs().max().item<double>(), 1e-12);
  EXPECT_LT((raw.probs_BE[0] - s.sum(0)).abs().max().item<double>(), 1e-11);
  const at::Tensor lse = at::logsumexp(z, {1});
  EXPECT_LT((raw.lse_squares - (lse * lse).sum()).abs().item<double>(), 1e-9);
  EXPECT_EQ(raw.counts_E.sum().item<int64_t>(), 37 * 3);
}

TEST(RouteOp, AgreesWithTheNumericJacobian) {
  for (const auto& [score, weighting] :
       {std::pair(Score::kSoftmax, Weighting::kChosen), std::pair(Score::kSoftmax, Weighting::kRaw),
        std::pair(Score::kSoftmax, Weighting::kNorm), std::pair(Score::kSigmoid, Weighting::kSum),
        std::pair(Score::kSqrtSoftplus, Weighting::kNorm)}) {
    const auto f = [&, s = score, w = weighting](const Tensors& t) {
      const RouteResult r = route(t[0], options(s, w, 2, 3));
      return at::cat({r.weights_TK.flatten(), r.probs_BE.flatten(), r.lse_squares.view({1})});
    };
    testing::expect_gradients(f, {logits(6, 5)}, 1e-6);  // sums of lse^2 lose digits to differences
  }
}

TEST(RouteOp, G3_InvalidTokensHaveNoChoiceNoGradient) {
  const at::Tensor z = logits(6, 4);
  RouteOptions o = options(Score::kSoftmax, Weighting::kRaw, 2);
  o.valid_T = at::ones({6}, at::kBool);
  o.valid_T.slice(0, 2, 4).fill_(false);
  const RouteResult r = route(z, o);
  EXPECT_EQ(r.ids_TK.slice(0, 2, 4).max().item<int>(), -1);
  EXPECT_EQ(r.tokens_B.item<int64_t>(), 4);
  (r.weights_TK.sum() + r.lse_squares + r.probs_BE.sum()).backward();
  EXPECT_EQ(z.grad().slice(0, 2, 4).abs().max().item<double>(), 0);
  EXPECT_GT(z.grad().abs().max().item<double>(), 0);
}

TEST(RouteOp, R15_TakesGivenChoices) {
  const at::Tensor z = logits(5, 4);
  RouteOptions o = options(Score::kSoftmax, Weighting::kRaw, 1);
  o.given_ids_TK = at::arange(5, at::kInt).remainder(4).view({5, 1});
  const RouteResult r = route(z, o);
  EXPECT_TRUE(r.ids_TK.equal(o.given_ids_TK));
  const at::Tensor s = at::softmax(z, 1).gather(1, o.given_ids_TK.to(at::kLong)) * 2.5;
  EXPECT_LT((r.weights_TK - s).abs().max().item<double>(), 1e-12);
}

TEST(RouteOp, E1_ZeroTokens) {
  const at::Tensor z = logits(0, 4);
  const RouteResult r = route(z, options(Score::kSoftmax, Weighting::kRaw, 2));
  EXPECT_EQ(r.counts_E.sum().item<int64_t>(), 0);
  (r.lse_squares + r.probs_BE.sum()).backward();
  EXPECT_EQ(z.grad().numel(), 0);
}

TEST(RouteOp, G2_CpuAndCudaChooseAlike) {
  if (!kHasCuda) GTEST_SKIP() << why_no_cuda();
  const at::Tensor z = (logits(4096, 64, at::kFloat).detach() * 2).round() / 2;
  for (const Score score : {Score::kSoftmax, Score::kSigmoid}) {
    const Weighting w = score == Score::kSoftmax ? Weighting::kRaw : Weighting::kSum;
    const RouteResult cpu = route(z, options(score, w, 8)),
                      gpu = route(z.cuda(), options(score, w, 8));
    EXPECT_TRUE(gpu.ids_TK.cpu().equal(cpu.ids_TK));
    EXPECT_TRUE(gpu.plain_counts_BE.cpu().equal(cpu.plain_counts_BE));
    EXPECT_LT((gpu.weights_TK.cpu() - cpu.weights_TK).abs().max().item<double>(), 1e-5);
  }
}

TEST(RouteOp, NamesTheArgumentThatIsWrong) {
  RouteOptions o = options(Score::kSoftmax, Weighting::kRaw, 2);
  o.valid_T = at::ones({3}, at::kBool);
  TROUPE_EXPECT_REFUSAL(route(logits(4, 5), o), "route: valid must have sizes");
  o.valid_T = at::ones({4}, at::kFloat);
  TROUPE_EXPECT_REFUSAL(route(logits(4, 5), o), "route: valid must be of type");
  TROUPE_EXPECT_REFUSAL(route(logits(4, 5)[0], {}), "route: logits must have sizes");
  TROUPE_EXPECT_REFUSAL(route(at::ones({4, 5}, at::kInt), {}), "route: logits");
  TROUPE_EXPECT_REFUSAL(route(logits(4, 5), options(Score::kSoftmax, Weighting::kRaw, 6)), "6");
}

}  // namespace
}  // namespace troupe
