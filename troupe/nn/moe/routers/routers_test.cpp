#include "troupe/nn/moe/routers/routers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/publish.h"
#include "troupe/nn/moe/virtual_group_test.h"
#include "troupe/ops/quantile.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

struct Ungated {
  static constexpr std::string_view kKind = "ungated";
  static void visit(auto&, auto&&) {}
};

TEST(Routers, AConfigNeedNotHaveAGate) {
  OneOf<Ungated, TopkSoftmaxRouting> config;
  EXPECT_EQ(gate_of(config), nullptr);
  TopkSoftmaxRouting gated;
  gated.gate.jitter = 0.5;
  config = gated;
  ASSERT_NE(gate_of(config), nullptr);
  EXPECT_EQ(gate_of(std::as_const(config))->jitter, 0.5);
  gate_of(config)->std = 3;
  EXPECT_EQ(std::get<TopkSoftmaxRouting>(config).gate.std, 3);
}

TEST(Routers, AConfigSaysThatItIsNotCausalOrThatItIsEven) {
  for (const OneOf<Ungated, ExpertChoiceRouting>& config :
       {OneOf<Ungated, ExpertChoiceRouting>(Ungated{}), {ExpertChoiceRouting{}}}) {
    const bool chooses_tokens = config.kind() == ExpertChoiceRouting::kKind;
    EXPECT_EQ(is_causal(config), !chooses_tokens);
    EXPECT_EQ(is_even(config), chooses_tokens);
  }
}

constexpr RouterShape kShape{.width = 6, .experts = 8, .top_k = 2, .vocab = 100};
const Context kTraining{.training = true, .seed = 7, .step = 3, .layer = 2};

std::unique_ptr<Router> router_of(const RouterConfig& config, const RouterShape& shape = kShape,
                                  at::ScalarType type = at::kFloat) {
  auto router = build(config, shape);
  for_each_param(*router, "router", [&](const std::string& name, Param& p) {
    p.allocate(at::TensorOptions(type));
    initialize(p, name, 1);
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
  const at::Tensor z = router_product(x, w, at::kFloat).z_TE;
  EXPECT_EQ(z.scalar_type(), at::kFloat);
  const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble);
  const at::Tensor size = at::matmul(xd.abs(), wd.abs().t());
  EXPECT_LT(((z - at::matmul(xd, wd.t())).abs() / size).max().item<double>(), 1e-6);
}

TEST(Gate, R1_GradientsAgreeWithTheJacobian) {
  testing::expect_gradients(
      [](const testing::Tensors& in) { return router_product(in[0], in[1], at::kDouble).z_TE; },
      {at::randn({4, 3}, at::kDouble).requires_grad_(),
       at::randn({5, 3}, at::kDouble).requires_grad_()});
}

// Gradients whose sums over tokens cancel except for what bf16 would round away.
class GateOn : public testing::DeviceTest {};

TEST_P(GateOn, R1_GradientsKeepWhatBf16WouldRoundAway) {
  const int64_t T = 512, E = 9, D = 64;
  const at::Tensor sign = 1 - 2 * at::arange(T).remainder(2).view({T, 1});
  const at::Tensor dz = 1 + 1e-3 * at::randn({T, E});
  const at::Tensor x = (sign * at::ones({T, D})).to(at::kBFloat16);
  const at::Tensor w = at::randn({E, D}).to(at::kBFloat16);
  at::Tensor gx = x.to(device().place).requires_grad_(), gw = w.to(device().place).requires_grad_();
  router_product(gx, gw, at::kFloat).z_TE.backward(dz.to(device().place));
  const auto error = [](const at::Tensor& got, const at::Tensor& want) {
    return ((got.cpu().to(at::kDouble) - want).norm() / want.norm()).item<double>();
  };
  const at::Tensor wide = dz.to(at::kDouble);
  EXPECT_LT(error(gw.grad(), at::matmul(wide.t(), x.to(at::kDouble))), 1e-2);
  EXPECT_LT(error(gx.grad(), at::matmul(wide, w.to(at::kDouble))), 4e-3);
}

TEST_P(GateOn, WhatElseFlowsIntoXIsAddedInTheProduct) {
  const auto place = device().place;
  const auto wide = [](const at::Tensor& t) { return t.detach().cpu().to(at::kDouble); };
  for (const auto& [type, bound] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 6e-3}}) {
    const at::Tensor w = at::randn({9, 24}).to(type).to(place);
    const at::Tensor dz = at::randn({40, 9}).to(place), dx = at::randn({40, 24}).to(type).to(place);
    for (const bool held : {false, true}) {  // held: another reader has the gradient that comes
      const at::Tensor x = at::randn({40, 24}).to(type).to(place).requires_grad_();
      const at::Tensor beside = at::zeros_like(x).requires_grad_();
      const auto [z, again] = router_product(x, w, at::kFloat);
      EXPECT_EQ(again.const_data_ptr(), x.const_data_ptr());
      const at::Tensor used = held ? again + beside : again * 1;
      ((z * dz).sum() + (used * dx).to(at::kFloat).sum()).backward();
      const at::Tensor want = at::matmul(wide(dz), wide(w)) + wide(dx);
      EXPECT_LT(((wide(x.grad()) - want).norm() / want.norm()).item<double>(), bound);
      EXPECT_TRUE(!held || beside.grad().equal(dx));
    }
  }
}
TROUPE_ON_DEVICES(GateOn);

TEST(Gate, XIsHandedOnAsItIsWhereNobodyWantsItsGradient) {
  const at::Tensor x = at::randn({4, 3}), w = at::randn({5, 3}).requires_grad_();
  EXPECT_TRUE(router_product(x, w, at::kFloat).x_TD.is_same(x));
}

// A router whose logits are the input as it sees it.
std::unique_ptr<Router> mirror_of(TopkSoftmaxRouting config) {
  auto router = router_of(config, {.width = 6, .experts = 6, .top_k = 2});
  param(*router, "weight").value.detach().copy_(at::eye(6));
  return router;
}

TEST(Gate, R2_JitterStaysInItsRangeAndFollowsTheGlobalToken) {
  TopkSoftmaxRouting c;
  c.gate.jitter = 0.1;
  const auto router = mirror_of(c);
  const auto seen = [&](const at::Tensor& x, const Context& context) {
    return router->forward(x, {}, context).logits_TE;
  };
  const at::Tensor x = at::ones({20, 6});
  const at::Tensor y = seen(x, kTraining);
  EXPECT_GE(y.min().item<float>(), 0.9f);
  EXPECT_LE(y.max().item<float>(), 1.1f);
  EXPECT_GT(y.std().item<float>(), 0.04f);
  Context second = kTraining;  // the second of two ranks that share the tokens
  second.first_token = 12;
  EXPECT_TRUE(seen(x.narrow(0, 12, 8), second).equal(y.narrow(0, 12, 8)));
  Context other = kTraining;
  other.layer = 5;
  EXPECT_FALSE(seen(x, other).equal(y));
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

TEST(Gate, R2_R3_RefusesNoiseThatCannotBe) {
  for (const double jitter : {-0.1, 1.0, static_cast<double>(NAN)}) {
    TopkSoftmaxRouting c;
    c.gate.jitter = jitter;
    expect_has(refusal([&] { router_of(c); }), "jitter is");
  }
  TopkSoftmaxRouting c;
  c.gate.force_std = -1;
  expect_has(refusal([&] { router_of(c); }), "force_std is -1");
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

TEST(Gate, R3_TheBiasedVectorMayBeFixedAndIsThatOfEveryRank) {
  TopkSoftmaxRouting c;
  c.gate.force = Force::kBiased;
  const auto added = [&](bool fixed, const Context& context) {
    c.gate.force_fixed = fixed;
    return mirror_of(c)->forward(at::zeros({3, 6}), {}, context).logits_TE;
  };
  Context next = kTraining, other_rank = kTraining;
  ++next.step;
  other_rank.first_token = 1000;
  EXPECT_TRUE(added(true, next).equal(added(true, kTraining)));
  EXPECT_FALSE(added(false, next).equal(added(false, kTraining)));
  EXPECT_TRUE(added(false, other_rank).equal(added(false, kTraining)));
  EXPECT_TRUE(added(false, kTraining)[2].equal(added(false, kTraining)[0]));
}

TEST(Gate, R3_RandomLogitsAreTheNoiseAloneAndFollowTheGlobalToken) {
  TopkSoftmaxRouting c;
  c.gate.force = Force::kRandom;
  const auto router = mirror_of(c);
  const at::Tensor z = router->forward(at::randn({20, 6}) * 1e6, {}, kTraining).logits_TE;
  EXPECT_LT(z.abs().max().item<double>(), 6);
  Context second = kTraining;
  second.first_token = 15;
  EXPECT_TRUE(router->forward(at::randn({5, 6}), {}, second).logits_TE.equal(z.narrow(0, 15, 5)));
}

TEST(Gate, G1_RoutingIsF32WhateverTheModel) {
  const auto router = router_of(SigmoidBiasRouting{}, kShape, at::kBFloat16);
  const RouterOutput out = router->forward(at::randn({30, 6}).to(at::kBFloat16), {}, kTraining);
  EXPECT_EQ(out.logits_TE.scalar_type(), at::kFloat);
  EXPECT_EQ(out.weights_TK.scalar_type(), at::kFloat);
  EXPECT_EQ(out.balance.lse_squares.scalar_type(), at::kFloat);
  EXPECT_EQ(out.counts_E.scalar_type(), at::kLong);
}

// In f32 a choice may differ from f64's where the two logits are within the rounding of R1's bound.
TEST(Gate, R1_IndicesAreThoseOfF64ExceptWhereTheGapIsRounding) {
  const RouterShape shape{.width = 256, .experts = 64, .top_k = 8};
  TopkSoftmaxRouting c;
  const auto narrow = router_of(c, shape);
  c.gate.fp64 = true;
  const auto wide = router_of(c, shape);
  const at::Tensor x = at::randn({2000, 256}), w = param(*narrow, "weight").value;
  const at::Tensor z = at::matmul(x.to(at::kDouble), w.to(at::kDouble).t());
  const at::Tensor bound = at::matmul(x.abs(), w.abs().t()).to(at::kDouble).amax({1}, true) * 2e-6;
  const at::Tensor want = std::get<1>(z.topk(8)), ids = narrow->forward(x, {}, {}).ids_TK;
  const at::Tensor gap = (z.gather(1, ids.to(at::kLong)) - z.gather(1, want)).abs();
  EXPECT_TRUE(gap.le(bound).all().item<bool>());
  EXPECT_TRUE(wide->forward(x, {}, {}).ids_TK.equal(want.to(at::kInt)));
  EXPECT_EQ(wide->forward(x, {}, {}).weights_TK.scalar_type(), at::kDouble);
}

TEST(Routers, R8_TheScaleIsWhatTheWeightsSumTo) {
  SigmoidBiasRouting c;
  c.scale = 2.5;
  const at::Tensor sum = router_of(c)->forward(at::randn({30, 6}), {}, kTraining).weights_TK.sum(1);
  EXPECT_LT((sum - 2.5).abs().max().item<double>(), 1e-6);
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

TEST(SigmoidBias, R10_ACenteredRoutersBiasKeepsAMeanOfZero) {
  const RouterShape three = {.width = 6, .experts = 3, .top_k = 1};
  const at::Tensor x = at::ones({40, 6});  // all tokens are alike: one expert has them all
  const auto mean_after = [&](bool center) {
    SigmoidBiasRouting config;
    config.center = center;
    const auto router = router_of(config, three);
    router->forward(x, {}, kTraining);
    router->end_of_step({}, false);
    return param(*router, "balance_bias").value.mean().item<double>();
  };
  EXPECT_NEAR(mean_after(false), 1e-3 / 3, 1e-9);  // two up, one down
  EXPECT_NEAR(mean_after(true), 0, 1e-9);
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

// A file of `rows` int32 rows of kShape's two choices.
std::string table_file(const testing::TemporaryFolder& folder, const at::Tensor& table_VK) {
  const std::string path = folder / "table";
  Fs fs;
  publish_file(
      fs, path,
      std::string_view(static_cast<const char*>(table_VK.const_data_ptr()), table_VK.nbytes()));
  return path;
}

at::Tensor distinct_pairs(int64_t rows) {
  const at::Tensor first = at::randint(0, 8, {rows, 1}, at::kInt);
  return at::cat({first, (first + at::randint(1, 8, {rows, 1}, at::kInt)).remainder(8)}, 1)
      .contiguous();
}

TEST(Table, R14_AFilesRowsAreTheChoicesAndTheLogitsWeighThem) {
  const testing::TemporaryFolder folder;
  const at::Tensor table = distinct_pairs(100), ids = at::randint(0, 100, {40}, at::kLong);
  const at::Tensor x = at::randn({40, 6}), want = table.index_select(0, ids);
  TableRouting c;
  c.table = table_file(folder, table);
  c.scale = 1.5;
  const auto soft = router_of(c);
  const RouterOutput out = soft->forward(x, {.ids_T = ids}, kTraining);
  EXPECT_TRUE(out.ids_TK.equal(want));
  const at::Tensor p = out.logits_TE.softmax(1).gather(1, want.to(at::kLong)) * 1.5;
  EXPECT_LT((out.weights_TK - p).abs().max().item<double>(), 1e-6);
  c.score = RouterScore::kSigmoid;
  const at::Tensor s = out.logits_TE.sigmoid().gather(1, want.to(at::kLong));
  const RouterOutput normalized = router_of(c)->forward(x, {.ids_T = ids}, kTraining);
  EXPECT_LT((normalized.weights_TK - s / s.sum(1, true) * 1.5).abs().max().item<double>(), 1e-6);
  EXPECT_FALSE(soft->balance().balances());
  int64_t params = 0;
  for_each_param(*soft, "", [&](const std::string&, Param&) { ++params; });
  EXPECT_EQ(params, 1);  // the gate's weight: no bias
}

TEST(Table, R14_E22_AFileIsCheckedWhenItIsLoaded) {
  const testing::TemporaryFolder folder;
  TableRouting c;
  const auto refused = [&](const at::Tensor& table) {
    c.table = table_file(folder, table);
    return refusal([&] { router_of(c); });
  };
  at::Tensor table = distinct_pairs(100);
  EXPECT_EQ(refused(table), "");
  table[70][1] = table[70][0];
  expect_has(refused(table), "row 70");
  table[70][1] = 8;
  expect_has(refused(table), "expert 8 of 8");
  expect_has(refused(distinct_pairs(99)), "792 bytes; a table of 100");
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
    beta = troupe::quantile(z, beta, std::nullopt, 2);
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
    return troupe::quantile(router_product(in, w.value, at::kFloat).z_TE.detach(), at::zeros({8}),
                            std::nullopt, 2);
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

TEST(Quantile, R11_RefusesAllExperts) {
  expect_has(refusal([] { router_of(QuantileRouting{}, {.width = 6, .experts = 4, .top_k = 4}); }),
             "top_k 4");
}

// Three ranks of 20, 0 and 28 tokens, some of them invalid; the last rank has no mask.
struct Split {
  at::Tensor x = at::randn({48, 6});
  at::Tensor valid = at::cat({at::rand({20}).gt(0.3), at::ones({28}, at::kBool)});
  std::array<int64_t, 4> first = {0, 20, 20, 48};

  at::Tensor of(int64_t rank, const at::Tensor& rows) const {
    return rows.narrow(0, first[rank], first[rank + 1] - first[rank]);
  }
  Tokens tokens(int64_t rank) const {
    return rank == 2 ? Tokens{} : Tokens{.valid_T = of(rank, valid)};
  }
};

TEST(Quantile, R11_TheStatisticIsThatOfTheWholeGroup) {
  const Split split;
  const auto one = router_of(QuantileRouting{});
  one->forward(split.x, {.valid_T = split.valid}, kTraining);
  one->end_of_step({}, false);
  const at::Tensor want = param(*one, "beta").value;
  run_group(3, [&](VirtualRank& rank) {
    const auto router = router_of(QuantileRouting{});
    Context context = kTraining;
    context.group_rows = rank.rows();
    router->forward(split.of(rank.index(), split.x), split.tokens(rank.index()), context);
    router->end_of_step({}, false);
    EXPECT_LT((param(*router, "beta").value - want).abs().max().item<double>(), 1e-6);
  });
  EXPECT_GT(want.abs().max().item<double>(), 1e-4);
}

// Each rank's choices, weights and gradient of the weights are its part of one rank's with all
// tokens.
void expect_group_is_one_rank(const RouterConfig& config) {
  const Split split;
  const auto one = router_of(config);
  const at::Tensor x = split.x.clone().requires_grad_(), cost = at::randn({48, 8});
  const RouterOutput want = one->forward(x, {.valid_T = split.valid}, kTraining);
  (want.weights_TK * cost.narrow(1, 0, want.weights_TK.size(1))).sum().backward();
  at::Tensor counts = at::zeros({8}, at::kLong);
  run_group(3, [&](VirtualRank& rank) {
    const auto router = router_of(config);
    Context context = kTraining;
    context.group_rows = rank.rows();
    const auto own = [&](const at::Tensor& rows) { return split.of(rank.index(), rows); };
    const at::Tensor mine = own(split.x).clone().requires_grad_();
    const RouterOutput got = router->forward(mine, split.tokens(rank.index()), context);
    EXPECT_TRUE(got.ids_TK.equal(own(want.ids_TK)));
    EXPECT_TRUE(got.weights_TK.equal(own(want.weights_TK)));
    (got.weights_TK * own(cost).narrow(1, 0, got.weights_TK.size(1))).sum().backward();
    EXPECT_LT((mine.grad() - own(x.grad())).abs().sum().item<double>(), 1e-5);
    const at::Tensor all = rank.sum()(got.counts_E);
    if (rank.index() == 0) counts = all;
  });
  EXPECT_TRUE(counts.equal(want.counts_E));
}

TEST(Sinkhorn, R12_TheGroupChoosesAsOneRankWouldWithAllTokens) {
  SinkhornRouting c;
  c.scope = RoutingScope::kGroup;
  expect_group_is_one_rank(c);
}

TEST(Sinkhorn, R12_TheRanksOwnTokensAreTheDefaultScope) {
  const Split split;
  EXPECT_EQ(SinkhornRouting{}.scope, RoutingScope::kRank);
  const auto router = router_of(SinkhornRouting{});
  const at::Tensor x = split.of(2, split.x);
  const at::Tensor alone = router->forward(x, {}, kTraining).ids_TK;
  Context context = kTraining;
  context.group_rows = [](const at::Tensor&) -> RowsOfGroup {
    ADD_FAILURE() << "asked for the group's rows";
    return {};
  };
  EXPECT_TRUE(router->forward(x, {}, context).ids_TK.equal(alone));
}

TEST(Sinkhorn, R12_E1_InvalidTokensTakeNoPartAndNoneGivesNothing) {
  const auto router = router_of(SinkhornRouting{});
  const at::Tensor x = at::randn({60, 6}), valid = at::arange(60).lt(40);
  const RouterOutput some = router->forward(x, {.valid_T = valid}, kTraining);
  EXPECT_TRUE(some.ids_TK.narrow(0, 0, 40).equal(
      router->forward(x.narrow(0, 0, 40), {}, kTraining).ids_TK));
  EXPECT_TRUE(some.ids_TK.narrow(0, 40, 20).eq(-1).all().item<bool>());
  EXPECT_EQ(router->forward(x.narrow(0, 0, 0), {}, kTraining).ids_TK.size(0), 0);
}

TEST(Sinkhorn, R12_TrainingBalancesAndEvaluationTakesTheActivation) {
  const auto router = router_of(SinkhornRouting{});
  const at::Tensor x = at::randn({4000, 6}) + 1;
  const RouterOutput trained = router->forward(x, {}, kTraining),
                     evaluated = router->forward(x, {}, {});
  const auto worst = [](const RouterOutput& r) { return r.counts_E.max().item<double>() / 1000; };
  EXPECT_LT(worst(trained), 1.6);
  EXPECT_LE(worst(trained), worst(evaluated));
  const at::Tensor s =
      router_product(x, param(*router, "weight").value, at::kFloat).z_TE.softmax(1);
  const at::Tensor want = s.gather(1, trained.ids_TK.to(at::kLong));
  EXPECT_LT((trained.weights_TK - want).abs().max().item<double>(), 1e-6);
}

TEST(ExpertChoice, R13_EachExpertTakesExactlyItsColumnsBest) {
  const auto router = router_of(ExpertChoiceRouting{});
  const at::Tensor x = at::randn({41, 6});
  const RouterOutput out = router->forward(x, {}, kTraining);
  EXPECT_TRUE(out.counts_E.eq(11).all().item<bool>());  // ceil(41 * 2 / 8)
  const at::Tensor s =
      router_product(x, param(*router, "weight").value, at::kFloat).z_TE.softmax(1);
  const at::Tensor taken = out.ids_TK.ge(0);
  const at::Tensor worst = s.masked_fill(taken.logical_not(), 2).amin({0});
  const at::Tensor best_left = s.masked_fill(taken, -1).amax({0});
  EXPECT_TRUE(worst.ge(best_left).all().item<bool>());
  const at::Tensor want = s.masked_fill(taken.logical_not(), 0);
  EXPECT_LT((out.weights_TK - want).abs().max().item<double>(), 1e-6);
}

TEST(ExpertChoice, R13_TheGroupChoosesAsOneRankWouldWithAllTokens) {
  ExpertChoiceRouting c;
  c.scope = RoutingScope::kGroup;
  expect_group_is_one_rank(c);
  c.normalize = true;
  c.score = RouterScore::kSigmoid;
  expect_group_is_one_rank(c);
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
  for (const std::string_view kind : RouterConfig::kinds()) {
    RouterConfig config;
    ASSERT_TRUE(config.select(kind));
    const auto router = router_of(config);
    const at::Tensor x = at::randn({40, 6});
    Tokens tokens{.valid_T = at::arange(40).ne(7), .ids_T = at::arange(40)};
    const RouterOutput first = router->forward(x, tokens, kTraining);
    tokens.replay_TK = first.ids_TK;
    const RouterOutput again = router->forward(x, tokens, kTraining);
    EXPECT_TRUE(again.ids_TK.equal(first.ids_TK)) << kind;
    EXPECT_TRUE(again.weights_TK.equal(first.weights_TK)) << kind;
    EXPECT_TRUE(again.counts_E.equal(first.counts_E)) << kind;
  }
}

TEST(Routers, R15_WeightsComeFromThePresentLogits) {
  const auto router = router_of(TopkSoftmaxRouting{});
  const at::Tensor ids = router->forward(at::randn({40, 6}), {}, kTraining).ids_TK;
  const RouterOutput out = router->forward(at::randn({40, 6}), {.replay_TK = ids}, kTraining);
  const at::Tensor want = out.logits_TE.gather(1, ids.to(at::kLong)).softmax(1);
  EXPECT_TRUE(out.ids_TK.equal(ids));
  EXPECT_LT((out.weights_TK - want).abs().max().item<double>(), 1e-6);
}

TEST(Routers, G7_BalanceSumsAreMadeWhereALossReadsThem) {
  const auto with = router_of(TopkSoftmaxRouting{}), without = router_of(TableRouting{});
  const at::Tensor x = at::randn({4, 6});
  EXPECT_TRUE(with->forward(x, {}, kTraining).balance.probs_BE.defined());
  EXPECT_FALSE(with->forward(x, {}, {}).balance.probs_BE.defined());
  const Tokens tokens{.ids_T = at::arange(4)};
  EXPECT_FALSE(without->forward(x, tokens, kTraining).balance.probs_BE.defined());
}

}  // namespace
}  // namespace troupe
