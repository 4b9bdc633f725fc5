#include "troupe/nn/routers/routers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/core/config.h"
#include "troupe/nn/routers/noise.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

constexpr RouterShape kShape{.width = 6, .experts = 8, .top_k = 2, .vocab = 100};
const Context kTraining{.training = true, .seed = 7, .step = 3, .layer = 2};

std::unique_ptr<Router> router_of(const RouterConfig& config, const RouterShape& shape = kShape,
                                  at::ScalarType type = at::kFloat) {
  auto router = build(config, shape);
  for_each_param(*router, "router", [&](const std::string& name, Param& p) {
    p.allocate(at::TensorOptions(type));
    initialise(p, name, 1);
  });
  return router;
}

Param& param(Router& router, const std::string& name) {
  Param* found = nullptr;
  for_each_param(router, "", [&](const std::string& n, Param& p) {
    if (n == name) found = &p;
  });
  TROUPE_CHECK(found != nullptr, "no parameter", name);
  return *found;
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_has(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Gate, R1_TheProductIsF32WhateverTheModel) {
  const at::Tensor x = at::randn({50, 300}).to(at::kBFloat16),
                   w = at::randn({9, 300}).to(at::kBFloat16);
  const at::Tensor z = router_product(x, w, at::kFloat);
  EXPECT_EQ(z.scalar_type(), at::kFloat);
  const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble);
  const at::Tensor size = at::matmul(xd.abs(), wd.abs().t());
  EXPECT_LT(((z - at::matmul(xd, wd.t())).abs() / size).max().item<double>(), 1e-6);
}

TEST(Gate, R1_GradientsAgreeWithTheJacobian) {
  testing::expect_gradients(
      [](const testing::Tensors& in) { return router_product(in[0], in[1], at::kDouble); },
      {at::randn({4, 3}, at::kDouble).requires_grad_(),
       at::randn({5, 3}, at::kDouble).requires_grad_()});
}

TEST(Gate, R2_JitterStaysInItsRangeAndFollowsTheGlobalToken) {
  const at::Tensor x = at::ones({20, 6});
  const at::Tensor y = jittered(x, 0.1, kTraining);
  EXPECT_GE(y.min().item<float>(), 0.9f);
  EXPECT_LE(y.max().item<float>(), 1.1f);
  EXPECT_GT(y.std().item<float>(), 0.04f);
  Context second = kTraining;  // the second of two ranks that share the tokens
  second.first_token = 12;
  EXPECT_TRUE(jittered(x.narrow(0, 12, 8), 0.1, second).equal(y.narrow(0, 12, 8)));
  Context other = kTraining;
  other.layer = 5;
  EXPECT_FALSE(jittered(x, 0.1, other).equal(y));
}

TEST(Gate, R2_TheRouterAloneJittersAndOnlyInTraining) {
  TopkSoftmaxRouting noisy;
  noisy.gate.jitter = 0.3;
  const auto a = router_of(TopkSoftmaxRouting{}), b = router_of(noisy);
  const at::Tensor x = at::randn({30, 6});
  const at::Tensor kept = x.clone();
  EXPECT_TRUE(b->forward(x, {}, {}).weights_TK.equal(a->forward(x, {}, {}).weights_TK));
  const RouterOutput trained = b->forward(x, {}, kTraining);
  EXPECT_FALSE(trained.weights_TK.equal(a->forward(x, {}, kTraining).weights_TK));
  EXPECT_TRUE(trained.weights_TK.equal(b->forward(x, {}, kTraining).weights_TK));
  Context first_pass = kTraining;  // of a recomputed block: the same noise
  first_pass.owns_backward = false;
  EXPECT_TRUE(trained.weights_TK.equal(b->forward(x, {}, first_pass).weights_TK));
  EXPECT_TRUE(x.equal(kept));
}

TEST(Gate, R3_UniformCountsDifferByAtMostOneAndKeepTheWeights) {
  TopkSoftmaxRouting forced;
  forced.gate.force = Force::kUniform;
  const auto a = router_of(TopkSoftmaxRouting{}), b = router_of(forced);
  const at::Tensor x = at::randn({31, 6});
  const RouterOutput out = b->forward(x, {}, kTraining);
  EXPECT_LE((out.counts_E.max() - out.counts_E.min()).item<int64_t>(), 1);
  EXPECT_EQ(out.counts_E.sum().item<int64_t>(), 62);
  EXPECT_TRUE(out.weights_TK.equal(a->forward(x, {}, kTraining).weights_TK));
  EXPECT_TRUE(out.forced);
  EXPECT_FALSE(a->forward(x, {}, kTraining).forced);
}

TEST(Gate, R3_RandomCountsAreBinomialAndTheGradientPasses) {
  TopkSoftmaxRouting forced;
  forced.gate.force = Force::kRandom;
  const auto router = router_of(forced);
  const at::Tensor x = at::ones({4000, 6}).requires_grad_();
  const RouterOutput out = router->forward(x, {}, kTraining);
  const double mean = 4000.0 * 2 / 8, sigma = std::sqrt(4000.0 * 0.25 * 0.75);
  EXPECT_LT((out.counts_E - mean).abs().max().item<double>(), 4 * sigma);
  out.weights_TK.select(1, 0).sum().backward();
  EXPECT_GT(x.grad().abs().max().item<double>(), 0);
}

TEST(Gate, R3_BiasedAddsOneVectorOnAllTokens) {
  TopkSoftmaxRouting forced;
  forced.gate.force = Force::kBiased;
  forced.gate.force_std = 100;
  const auto router = router_of(forced);
  const RouterOutput out = router->forward(at::randn({50, 6}), {}, kTraining);
  EXPECT_EQ(out.counts_E.eq(50).sum().item<int64_t>(), 2);
  Context next = kTraining;
  ++next.step;
  EXPECT_FALSE(router->forward(at::randn({50, 6}), {}, next).counts_E.equal(out.counts_E));
}

TEST(Routers, R4_OneChoiceAfterIsRefusedAndNamesTheOthers) {
  TopkSoftmaxRouting c;
  c.order = SoftmaxOrder::kAfter;
  const std::string what = refusal([&] { router_of(c, {.width = 6, .experts = 8, .top_k = 1}); });
  expect_has(what, "R5");
  expect_has(what, "R6");
  EXPECT_NO_THROW(router_of(TopkSoftmaxRouting{}, {.width = 6, .experts = 8, .top_k = 1}));
}

TEST(Routers, L5_OneExpertHasWeightExactlyOne) {
  const auto router = router_of(TopkSoftmaxRouting{}, {.width = 6, .experts = 1, .top_k = 1});
  EXPECT_TRUE(
      router->forward(at::randn({9, 6}), {}, kTraining).weights_TK.eq(1).all().item<bool>());
}

TEST(Routers, R9_RefusesGroupsThatCannotBe) {
  const auto what = [](const GroupsConfig& g) {
    return refusal([&] { validate(g, {.width = 6, .experts = 8, .top_k = 4}); });
  };
  expect_has(what({.groups = 3}), "3 groups");
  expect_has(what({.groups = 4, .keep = 5}), "keep is 5");
  expect_has(what({.groups = 4, .keep = 1}), "top_k 4");
  expect_has(what({.groups = 4, .keep = 2, .top = 3}), "3 best of 2");
  EXPECT_EQ(refusal([] {
              validate(GroupsConfig{.groups = 8, .keep = 8},
                       {.width = 6, .experts = 8, .top_k = 8});
            }),
            "");
  expect_has(refusal([] {
               validate(GroupsConfig{.groups = 4, .keep = 4},
                        {.width = 6, .experts = 8, .top_k = 2});
             }),
             "set limit.top");
}

TEST(Routers, E6_RefusesChoicesOutsideTheExpertsAndNamesBoth) {
  for (const auto& [E, K] : {std::pair{4, 5}, std::pair{4, 0}, std::pair{0, 1}}) {
    const std::string what =
        refusal([&] { router_of(TopkSoftmaxRouting{}, {.width = 6, .experts = E, .top_k = K}); });
    expect_has(what, ("top_k is " + std::to_string(K)).c_str());
    expect_has(what, ("experts is " + std::to_string(E)).c_str());
  }
}

TEST(SigmoidBias, R10_OneStepMovesTheBiasByTheRate) {
  at::Tensor b = at::zeros({4});
  update_bias(b, at::tensor({5, 3, 1, 3}, at::kLong), 1e-3, false);
  EXPECT_TRUE(b.equal(at::tensor({-1e-3f, 0.0f, 1e-3f, 0.0f})));
  at::Tensor c = at::zeros({3});
  update_bias(c, at::tensor({0, 0, 9}, at::kLong), 0.3, true);
  EXPECT_NEAR(c.sum().item<double>(), 0, 1e-7);
}

TEST(SigmoidBias, R10_CountsBeyond2To24StayExact) {
  at::Tensor b = at::zeros({2});
  const int64_t n = int64_t{1} << 40;
  update_bias(b, at::tensor({n + 1, n - 1}, at::kLong), 1e-3, false);
  EXPECT_TRUE(b.equal(at::tensor({-1e-3f, 1e-3f})));
}

TEST(SigmoidBias, R10_E18_OnlyTheStepsOwnForwardsCount) {
  const auto router = router_of(SigmoidBiasRouting{});
  Param& bias = param(*router, "balance_bias");
  const at::Tensor x = at::randn({40, 6});
  router->forward(x, {}, {});  // evaluation
  Context first_pass = kTraining;
  first_pass.owns_backward = false;
  router->forward(x, {}, first_pass);
  router->end_of_step({}, false);
  EXPECT_TRUE(bias.value.eq(0).all().item<bool>());
  const at::Tensor counts = router->forward(x, {}, kTraining).counts_E;
  router->end_of_step({}, false);
  EXPECT_TRUE(bias.value.equal((10 - counts).sign().to(at::kFloat) * 1e-3f));
}

TEST(SigmoidBias, R10_E19_ASkippedStepChangesNothingAndForgets) {
  const auto router = router_of(SigmoidBiasRouting{});
  Param& bias = param(*router, "balance_bias");
  router->forward(at::randn({40, 6}), {}, kTraining);
  router->end_of_step({}, true);
  router->end_of_step({}, false);
  EXPECT_TRUE(bias.value.eq(0).all().item<bool>());
}

TEST(SigmoidBias, R10_SumsOverMicrobatchesAndRanks) {
  const auto router = router_of(SigmoidBiasRouting{});
  Param& bias = param(*router, "balance_bias");
  const at::Tensor a = router->forward(at::randn({40, 6}), {}, kTraining).counts_E;
  const at::Tensor b = router->forward(at::randn({24, 6}), {}, kTraining).counts_E;
  at::Tensor seen;
  router->end_of_step([&](const at::Tensor& own) { return seen = own * 2; }, false);
  EXPECT_TRUE(seen.equal((a + b) * 2));
  EXPECT_TRUE(bias.value.equal((32 - seen).sign().to(at::kFloat) * 1e-3f));
}

TEST(SigmoidBias, R10_TheBiasIsF32StateInABf16Model) {
  const auto router = router_of(SigmoidBiasRouting{}, kShape, at::kBFloat16);
  const Param& bias = param(*router, "balance_bias");
  EXPECT_EQ(bias.value.scalar_type(), at::kFloat);
  EXPECT_FALSE(bias.value.requires_grad());
  EXPECT_FALSE(bias.trainable());
}

TEST(Table, R14_ChoicesAreTheTables) {
  const auto router = router_of(TableRouting{});
  const at::Tensor ids = at::randint(0, 100, {12}, at::kLong);
  const RouterOutput out = router->forward(at::randn({12, 6}), {.ids_T = ids}, kTraining);
  EXPECT_TRUE(out.ids_TK.select(1, 0).equal(ids.remainder(8).to(at::kInt)));
  EXPECT_TRUE(out.ids_TK.select(1, 1).equal((ids + 1).remainder(8).to(at::kInt)));
}

TEST(Table, R14_E22_RefusesADuplicateOrAStrangerAndNamesTheRow) {
  expect_has(refusal([] {
               check_table(at::tensor({0, 1, 3, 3}, at::kInt).reshape({2, 2}), 4);
             }),
             "row 1");
  expect_has(refusal([] {
               check_table(at::tensor({0, 4}, at::kInt).reshape({1, 2}), 4);
             }),
             "expert 4");
}

TEST(Table, R14_NeedsTokenIds) {
  const auto router = router_of(TableRouting{});
  expect_has(refusal([&] { router->forward(at::randn({3, 6}), {}, {}); }), "token ids");
}

TEST(Quantile, R11_FixedLogitsComeToEqualCounts) {
  const at::Tensor z = at::randn({8192, 16}) + at::arange(16) * 0.3;
  at::Tensor beta = at::zeros({16});
  for (int update = 0; update < 50; ++update) {
    beta = quantile_update(z, beta, {}, 2);
    beta = beta - beta.mean();
  }
  const RouterOutput out = select(z, {}, {.top_k = 2, .beta_E = beta});
  EXPECT_LE(out.counts_E.max().item<double>() / 1024, 1.01);
}

TEST(Quantile, R11_TheStepIsTheMeanOfItsMicrobatches) {
  QuantileRouting c;
  c.ema = 0.25;
  const auto router = router_of(c);
  Param& beta = param(*router, "beta");
  Param& w = param(*router, "weight");
  const at::Tensor x = at::randn({40, 6}), y = at::randn({40, 6});
  const auto fresh = [&](const at::Tensor& in) {
    return quantile_update(router_product(in, w.value, at::kFloat).detach(), at::zeros({8}), {}, 2);
  };
  at::Tensor want = (fresh(x) + fresh(y)) / 2 * 0.75;
  want = want - want.mean();
  router->forward(x, {}, kTraining), router->forward(y, {}, kTraining);
  router->forward(x, {}, {});  // evaluation adds nothing
  router->end_of_step({}, false);
  EXPECT_LT((beta.value - want).abs().max().item<double>(), 1e-6);
  const at::Tensor before = beta.value.clone();
  router->forward(x, {}, kTraining);
  router->end_of_step({}, true);
  router->end_of_step({}, false);
  EXPECT_TRUE(beta.value.equal(before));
}

TEST(Quantile, R11_CountsValidTokensAndRefusesAllExperts) {
  const at::Tensor z = at::randn({30, 6}), valid = at::arange(30).lt(20);
  EXPECT_TRUE(quantile_update(z, at::zeros({6}), valid, 2)
                  .equal(quantile_update(z.narrow(0, 0, 20), at::zeros({6}), {}, 2)));
  const at::Tensor beta = at::randn({6});
  EXPECT_TRUE(quantile_update(z, beta, at::zeros({30}, at::kBool), 2).equal(beta));
  expect_has(refusal([] { router_of(QuantileRouting{}, {.width = 6, .experts = 4, .top_k = 4}); }),
             "top_k 4");
}

at::Tensor sinkhorn_ids(const at::Tensor& z, const at::Tensor& v) {
  return std::get<1>((z - z.amax({1}, true) + v).sort(true, 1, true)).narrow(1, 0, 2);
}

TEST(Sinkhorn, R12_ChoicesEqualTheConvergedSearch) {
  for (const double std : {0.1, 1.0, 3.0}) {
    const at::Tensor z = at::randn({2048, 16}, at::kDouble) * std;
    const at::Tensor v = sinkhorn_columns(z.to(at::kFloat), {}, 1e-4, 100);
    const at::Tensor limit = sinkhorn_columns(z, {}, 1e-13, 5000);
    const at::Tensor same = sinkhorn_ids(z.to(at::kFloat), v).eq(sinkhorn_ids(z, limit));
    EXPECT_GE(same.to(at::kDouble).mean().item<double>(), 0.998) << std;
    const at::Tensor y = z + limit, rows = y.softmax(1);
    EXPECT_LT((rows.mean(0) * 16 - 1).abs().max().item<double>(), 1e-5);
  }
}

TEST(Sinkhorn, R12_E14_LargeLogitsAndShiftsAreNoMatter) {
  const at::Tensor z = (at::randn({512, 8}) * 6 * 1024).round() / 1024;
  EXPECT_TRUE(sinkhorn_ids(z, sinkhorn_columns(z, {}, 1e-4, 100))
                  .equal(sinkhorn_ids(z + 256, sinkhorn_columns(z + 256, {}, 1e-4, 100))));
  EXPECT_TRUE(sinkhorn_columns(z * 1e3, {}, 1e-4, 100).isfinite().all().item<bool>());
}

TEST(Sinkhorn, R12_TrainingBalancesAndEvaluationTakesTheActivation) {
  const auto router = router_of(SinkhornRouting{});
  const at::Tensor x = at::randn({4000, 6}) + 1;
  const RouterOutput trained = router->forward(x, {}, kTraining),
                     evaluated = router->forward(x, {}, {});
  const auto worst = [](const RouterOutput& r) { return r.counts_E.max().item<double>() / 1000; };
  EXPECT_LT(worst(trained), 1.5);
  EXPECT_LE(worst(trained), worst(evaluated));
  const at::Tensor s = router_product(x, param(*router, "weight").value, at::kFloat).softmax(1);
  const at::Tensor want = s.gather(1, trained.ids_TK.to(at::kLong));
  EXPECT_LT((trained.weights_TK - want).abs().max().item<double>(), 1e-6);
}

TEST(Sinkhorn, R12_InvalidTokensTakeNoPartAndNoneGivesNothing) {
  const at::Tensor z = at::randn({60, 8}), valid = at::arange(60).lt(40);
  const at::Tensor v = sinkhorn_columns(z, valid, 1e-4, 100);
  EXPECT_LT((v - sinkhorn_columns(z.narrow(0, 0, 40), {}, 1e-4, 100)).abs().max().item<double>(),
            1e-5);
  EXPECT_TRUE(sinkhorn_columns(z.narrow(0, 0, 0), {}, 1e-4, 100).eq(0).all().item<bool>());
  EXPECT_TRUE(
      sinkhorn_columns(z, at::zeros({60}, at::kBool), 1e-4, 100).isfinite().all().item<bool>());
}

TEST(ExpertChoice, R13_EachExpertTakesExactlyItsColumnsBest) {
  const auto router = router_of(ExpertChoiceRouting{});
  const at::Tensor x = at::randn({41, 6});
  const RouterOutput out = router->forward(x, {}, kTraining);
  EXPECT_TRUE(out.counts_E.eq(11).all().item<bool>());  // ceil(41 * 2 / 8)
  const at::Tensor s = router_product(x, param(*router, "weight").value, at::kFloat).softmax(1);
  const at::Tensor taken = out.ids_TK.ge(0);
  const at::Tensor worst = s.masked_fill(taken.logical_not(), 2).amin({0});
  const at::Tensor best_left = s.masked_fill(taken, -1).amax({0});
  EXPECT_TRUE(worst.ge(best_left).all().item<bool>());
  EXPECT_TRUE(out.weights_TK.equal(s.masked_fill(taken.logical_not(), 0)));
}

TEST(ExpertChoice, R13_AHandExample) {
  ExpertChoiceRouting c;
  c.rho = 1;
  c.score = RouterScore::kSigmoid;
  const auto router = router_of(c, {.width = 2, .experts = 2, .top_k = 1});
  param(*router, "weight")
      .value.detach()
      .copy_(at::tensor({1.0f, 0.0f, 0.0f, 1.0f}).reshape({2, 2}));
  const at::Tensor x = at::tensor({3.0f, 9.0f, 2.0f, 1.0f, 5.0f, 0.0f, 1.0f, 8.0f}).reshape({4, 2});
  const RouterOutput out = router->forward(x, {}, {});
  EXPECT_TRUE(out.ids_TK.equal(at::tensor({0, 1, -1, -1, 0, -1, -1, 1}, at::kInt).reshape({4, 2})));
}

TEST(ExpertChoice, R13_ShufflingTokensPermutesTheResultAndMasksHold) {
  const auto router = router_of(ExpertChoiceRouting{});
  const at::Tensor x = at::randn({40, 6}), order = at::randn({40}).argsort();
  const at::Tensor ids = router->forward(x, {}, {}).ids_TK;
  EXPECT_TRUE(
      router->forward(x.index_select(0, order), {}, {}).ids_TK.equal(ids.index_select(0, order)));
  const at::Tensor valid = at::arange(40).lt(20);
  const RouterOutput some = router->forward(x, {.valid_T = valid}, {});
  EXPECT_TRUE(some.counts_E.eq(5).all().item<bool>());
  EXPECT_TRUE(some.ids_TK.narrow(0, 20, 20).eq(-1).all().item<bool>());
  EXPECT_FALSE(router->is_causal());
}

TEST(Routers, OneListReadsEveryKind) {
  for (const std::string_view kind : RouterConfig::kinds()) {
    RouterConfig config;
    ASSERT_TRUE(config.select(kind));
    EXPECT_NO_THROW(router_of(config)) << kind;
  }
}

TEST(Routers, R15_AReplayedChoiceGivesTheSameBits) {
  const auto router = router_of(SigmoidBiasRouting{});
  const at::Tensor x = at::randn({40, 6});
  const RouterOutput first = router->forward(x, {}, kTraining);
  const RouterOutput again = router->forward(x, {.replay_TK = first.ids_TK}, kTraining);
  EXPECT_TRUE(again.ids_TK.equal(first.ids_TK));
  EXPECT_TRUE(again.weights_TK.equal(first.weights_TK));
  EXPECT_TRUE(again.counts_E.equal(first.counts_E));
}

}  // namespace
}  // namespace troupe
