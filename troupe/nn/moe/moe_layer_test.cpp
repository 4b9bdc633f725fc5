#include "troupe/nn/moe/moe_layer.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/distributed/dispatch/local_dispatcher.h"
#include "troupe/nn/moe/loss_edge.h"
#include "troupe/nn/moe/routing_trace.h"

namespace troupe {
namespace {

constexpr int64_t kD = 8;
const Context kTraining{.training = true, .seed = 5, .layer = 1};

MoeConfig config_of(int64_t experts = 6, int64_t top_k = 2) {
  MoeConfig c;
  c.experts = experts;
  c.top_k = top_k;
  c.ffn.hidden = 5;
  c.ffn.init.std = 0.4;
  return c;
}

MoeLayer layer_of(const MoeConfig& config, at::ScalarType type = at::kDouble,
                  std::unique_ptr<Dispatcher> dispatcher = nullptr, int64_t width = kD) {
  MoeShape shape = MoeShape::alone(width);
  shape.layers = 2;
  MoeLayer layer(config, shape, std::move(dispatcher));
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    if (name == "moe.router.weight") p.init.std = 0.7;
    p.allocate(at::TensorOptions(type));
    initialize(p, name, 11);
  });
  return layer;
}

std::map<std::string, at::Tensor> gradients(MoeLayer& layer, const at::Tensor& x,
                                            const Tokens& tokens = {},
                                            const Context& context = kTraining) {
  std::map<std::string, at::Tensor> out;
  for_each_param(layer, "", [&](const std::string&, Param& p) { p.value.mutable_grad().reset(); });
  x.mutable_grad().reset();
  MoeOutput y = layer.forward(x, tokens, context);
  out["y"] = y.y.detach();
  for (const MoeLoss& loss : y.losses) y.y = with_loss(y.y, loss.value, 1);
  (y.y.to(at::kDouble) * at::arange(y.y.numel(), at::kDouble).cos().reshape(y.y.sizes()))
      .sum()
      .backward();
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    if (p.value.grad().defined()) out[name] = p.value.grad().clone();
  });
  if (x.grad().defined()) out["x"] = x.grad().clone();
  return out;
}

void expect_same(const std::map<std::string, at::Tensor>& got,
                 const std::map<std::string, at::Tensor>& want, double bound = 0) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, w] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    const at::Tensor g = got.at(name).reshape(w.sizes());
    if (bound == 0) {
      EXPECT_TRUE(g.equal(w)) << name;
    } else if (w.numel() > 0) {
      EXPECT_LT((g - w).abs().max().item<double>(), bound) << name;
    }
  }
}

at::Tensor input(int64_t T, at::ScalarType type = at::kDouble) {
  return at::randn({T, kD}, at::kDouble).to(type).requires_grad_();
}

// The formula, slot by slot.
at::Tensor plain_loops(MoeLayer& layer, const at::Tensor& x) {
  const RouterOutput r = layer.router().forward(x, {}, {});
  const int64_t F = layer.experts().w2.value.size(2);
  at::Tensor y = at::zeros(x.sizes(), x.options());
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t k = 0; k < r.ids_TK.size(1); ++k) {
      const int64_t e = r.ids_TK[t][k].item<int64_t>();
      const at::Tensor h = layer.experts().w1.value[e].mv(x[t]);
      const at::Tensor g = h.narrow(0, 0, F), u = g * g.sigmoid() * h.narrow(0, F, F);
      y[t] += r.weights_TK[t][k] * layer.experts().w2.value[e].mv(u);
    }
  }
  return y;
}

TEST(MoeLayer, AgreesWithPlainLoops) {
  const at::NoGradGuard no_grad;
  MoeLayer layer = layer_of(config_of());
  const at::Tensor x = input(20).detach();
  const at::Tensor y = layer.forward(x, {}, {}).y;
  EXPECT_LT((y - plain_loops(layer, x)).abs().max().item<double>(), 1e-12);
}

TEST(MoeLayer, L1_OneTwoAndThreeDimensionsGiveTheSameBits) {
  MoeLayer layer = layer_of(config_of());
  const at::Tensor x = input(12).detach();
  const at::Tensor y = layer.forward(x, {}, kTraining).y;
  EXPECT_TRUE(layer.forward(x.reshape({1, 12, kD}), {}, kTraining).y.equal(y.reshape({1, 12, kD})));
  EXPECT_TRUE(layer.forward(x.reshape({3, 4, kD}), {}, kTraining).y.equal(y.reshape({3, 4, kD})));
  EXPECT_TRUE(layer.forward(x[5], {}, kTraining)
                  .y.equal(layer.forward(x.narrow(0, 5, 1), {}, kTraining).y[0]));
  EXPECT_THROW(layer.forward(at::zeros({2, 7}, at::kDouble), {}, {}), Error);
}

TEST(MoeLayer, L2_TheOutputBiasIsAddedOrReturned) {
  MoeConfig c = config_of();
  c.shared.experts = 1;
  c.output_bias = true;
  MoeLayer added = layer_of(c);
  c.return_bias = true;
  MoeLayer returned = layer_of(c);
  for (MoeLayer* m : {&added, &returned}) {
    for_each_param(*m, "", [](const std::string& name, Param& p) {
      if (name == "bias") p.value.detach().copy_(at::arange(kD, at::kDouble));
    });
  }
  const at::Tensor x = input(9);
  const MoeOutput out = returned.forward(x, {}, {});
  EXPECT_TRUE((out.y + out.bias).equal(added.forward(x, {}, {}).y));
  const auto g = gradients(added, x);
  const at::Tensor d_out = at::arange(9 * kD, at::kDouble).cos().reshape({9, kD});
  EXPECT_LT((g.at("bias") - d_out.sum(0)).abs().max().item<double>(), 1e-12);
}

TEST(MoeLayer, L3_IdentityProjectionsEqualThePlainLayer) {
  MoeConfig c = config_of();
  MoeLayer plain = layer_of(c);
  c.latent = kD;
  MoeLayer latent = layer_of(c);
  for_each_param(latent, "", [](const std::string& name, Param& p) {
    if (name.starts_with("latent")) p.value.detach().copy_(at::eye(kD, at::kDouble));
  });
  const at::Tensor x = input(15).detach();
  EXPECT_LT((latent.forward(x, {}, {}).y - plain.forward(x, {}, {}).y).abs().max().item<double>(),
            1e-12);
  c.latent = 3;
  MoeLayer narrow = layer_of(c);
  EXPECT_EQ(narrow.experts().w1.value.sizes(), (at::IntArrayRef{6, 10, 3}));
  EXPECT_EQ(narrow.forward(x, {}, {}).y.sizes(), x.sizes());
}

TEST(MoeLayer, L5_OneExpertIsTheDenseLayerBitForBit) {
  MoeLayer layer = layer_of(config_of(1, 1), at::kFloat);
  const at::Tensor x = input(33, at::kFloat), same = x.detach().clone().requires_grad_();
  const ExpertWeights w{layer.experts().w1.value, std::nullopt, layer.experts().w2.value,
                        std::nullopt};
  const auto got = gradients(layer, x);
  for_each_param(layer, "", [](const std::string&, Param& p) { p.value.mutable_grad().reset(); });
  const at::Tensor y = dense_ffn(same, w, {});
  (y.to(at::kDouble) * at::arange(y.numel(), at::kDouble).cos().reshape(y.sizes()))
      .sum()
      .backward();
  EXPECT_TRUE(got.at("y").equal(y));
  EXPECT_TRUE(got.at("x").equal(same.grad()));
  EXPECT_TRUE(got.at("experts.w1").equal(w.w1.grad()));
  EXPECT_TRUE(got.at("experts.w2").equal(w.w2.grad()));
  EXPECT_TRUE(got.at("router.weight").eq(0).all().item<bool>());
}

TEST(MoeLayer, G3_InvalidTokensChangeNothingAndGetZero) {
  MoeLayer layer = layer_of(config_of());
  const at::Tensor x = input(30), valid = at::rand({30}).gt(0.4);
  const at::Tensor keep = valid.nonzero().select(1, 0);
  const at::Tensor alone = x.detach().index_select(0, keep).requires_grad_();
  const MoeOutput out = layer.forward(x, {.valid_T = valid}, kTraining);
  const MoeOutput want = layer.forward(alone, {}, kTraining);
  EXPECT_TRUE(out.y.masked_select(valid.logical_not().unsqueeze(1)).eq(0).all().item<bool>());
  EXPECT_TRUE(out.y.index_select(0, keep).equal(want.y));
  EXPECT_TRUE(out.stats.counts_E.equal(want.stats.counts_E));
  EXPECT_NEAR(out.losses[0].value.item<double>(), want.losses[0].value.item<double>(), 1e-12);
}

TEST(MoeLayer, G4_TenRunsAreBitwiseEqual) {
  MoeLayer layer = layer_of(config_of(), at::kFloat);
  const at::Tensor x = input(64, at::kFloat);
  const auto first = gradients(layer, x);
  for (int run = 1; run < 10; ++run) expect_same(gradients(layer, x), first);
}

TEST(MoeLayer, G6_TwoModelsInTurnHaveTheLossesOfEachAlone) {
  MoeConfig c = config_of();
  std::get<TopkSoftmaxRouting>(c.router).balance.global_loss = 0.1;
  const at::Tensor x = input(16).detach(), z = input(16).detach();
  const auto losses = [](MoeLayer& m, const at::Tensor& in) {
    double sum = 0;
    for (const MoeLoss& l : m.forward(in, {}, kTraining).losses) sum += l.value.item<double>();
    return sum;
  };
  MoeLayer a = layer_of(c), b = layer_of(c), alone = layer_of(c);
  const double a1 = losses(a, x), b1 = losses(b, z), a2 = losses(a, z), b2 = losses(b, x);
  EXPECT_EQ(losses(alone, x), a1);
  EXPECT_EQ(losses(alone, z), a2);
  EXPECT_NE(a1, b1);
  EXPECT_NE(a2, b2);
}

TEST(MoeLayer, H1_VirtualRanksEqualOneRank) {
  MoeConfig c = config_of();
  c.shared.experts = 1;
  MoeLayer one = layer_of(c),
           three = layer_of(c, at::kDouble, virtual_ranks_dispatcher(contiguous(6, 3)));
  const at::Tensor x = input(25);
  expect_same(gradients(three, x), gradients(one, x), 1e-11);
}

TEST(MoeLayer, C1_AllTokensToOneExpertIsThatExpertsDenseLayer) {
  MoeConfig c = config_of(4, 1);
  MoeLayer layer = layer_of(c);
  const at::Tensor x = at::rand({50, kD}, at::kDouble);  // positive
  for_each_param(layer, "", [](const std::string& name, Param& p) {
    if (name == "router.weight") p.value.detach().zero_()[2].fill_(1e3);
  });
  const ExpertWeights w{layer.experts().w1.value.narrow(0, 2, 1), std::nullopt,
                        layer.experts().w2.value.narrow(0, 2, 1), std::nullopt};
  EXPECT_LT((layer.forward(x, {}, kTraining).y - dense_ffn(x, w, {})).abs().max().item<double>(),
            1e-12);
}

// C1 beyond a toy size: one expert gets every row, and the plan has no more rows than there are.
TEST(MoeLayer, E4_AllOf65536TokensToOneExpert) {
  const int64_t T = 65536;
  MoeConfig c = config_of(4, 1);
  MoeLayer layer = layer_of(c, at::kFloat);
  for_each_param(layer, "", [](const std::string& name, Param& p) {
    if (name == "router.weight") p.value.detach().zero_()[2].fill_(1e3);
  });
  const at::Tensor x = at::rand({T, kD}).requires_grad_();
  const auto g = gradients(layer, x);
  const ExpertWeights w{layer.experts().w1.value.narrow(0, 2, 1), std::nullopt,
                        layer.experts().w2.value.narrow(0, 2, 1), std::nullopt};
  EXPECT_LT((g.at("y") - dense_ffn(x, w, {})).abs().max().item<double>(), 1e-6);
  for (const int64_t e : {0, 1, 3}) EXPECT_TRUE(g.at("experts.w1")[e].eq(0).all().item<bool>());
  EXPECT_GT(g.at("experts.w1")[2].abs().max().item<double>(), 0);
  EXPECT_EQ(layer.forward(x, {}, kTraining).stats.counts_E[2].item<int64_t>(), T);
  const auto dispatcher = local_dispatcher(4);
  const RouterOutput r = layer.router().forward(x.detach(), {}, {});
  const DispatchedRows rows =
      dispatcher->begin(x.detach(), {.ids_TK = r.ids_TK, .scores_TK = r.weights_TK}).finish();
  EXPECT_LE(rows.plan.row_src.size(0), T);
}

TEST(MoeLayer, C5_DroppedTokensGetExactlyZeroAndLossesSeeTheChoices) {
  MoeConfig c = config_of(4, 1);
  c.capacity.factor = 0.5;
  MoeLayer layer = layer_of(c);
  MoeLayer dropless = layer_of(config_of(4, 1));
  const at::Tensor x = input(40).detach();
  const MoeOutput out = layer.forward(x, {}, kTraining), all = dropless.forward(x, {}, kTraining);
  EXPECT_EQ(out.y.eq(0).all(1).sum().item<int64_t>(), out.stats.dropped.item<int64_t>());
  EXPECT_GE(out.stats.dropped.item<int64_t>(), 20);
  EXPECT_TRUE(out.stats.counts_E.equal(all.stats.counts_E));
  EXPECT_EQ(out.losses[0].value.item<double>(), all.losses[0].value.item<double>());
}

TEST(MoeLayer, C6_PaddingChangesNoBit) {
  MoeConfig c = config_of();
  c.capacity.factor = 0.75;
  MoeLayer plain = layer_of(c, at::kFloat);
  c.capacity.pad = true;
  MoeLayer padded = layer_of(c, at::kFloat);
  const at::Tensor x = input(40, at::kFloat);
  expect_same(gradients(padded, x), gradients(plain, x));
}

// What MegaBlocks' tests of its two layers compare: samples, tokens of each, width, experts, choices.
// Its capacity factor 0 gives each expert as many rows as the fullest one has.
TEST(MoeLayer, C2_C6_RoomForTheFullestExpertIsDroplessOnMegaBlocksThirteenShapes) {
  const int64_t shapes[13][5] = {
      {16, 1024, 512, 1, 1}, {16, 1024, 512, 2, 1}, {16, 1024, 512, 4, 1}, {16, 1024, 512, 8, 1},
      {8, 2048, 512, 1, 1},  {8, 2048, 512, 2, 1},  {8, 2048, 512, 4, 1},  {16, 1024, 512, 2, 2},
      {16, 1024, 512, 4, 2}, {16, 1024, 512, 4, 4}, {16, 1024, 512, 8, 2}, {16, 1024, 512, 8, 4},
      {16, 1024, 512, 8, 8}};
  for (const auto& [B, S, D, E, K] : shapes) {
    MoeConfig c = config_of(E, K);
    c.ffn.hidden = 16;
    MoeLayer dropless = layer_of(c, at::kFloat, nullptr, D);
    const at::Tensor x = at::randn({B, S, D}).requires_grad_();
    const auto want = gradients(dropless, x);
    const at::Tensor counts = dropless.forward(x.detach(), {}, kTraining).stats.counts_E;
    const auto fullest = static_cast<double>(counts.max().item<int64_t>());
    const double factor = fullest * static_cast<double>(E) / static_cast<double>(B * S * K);
    c.capacity = {.factor = factor, .pad = true};
    MoeLayer roomy = layer_of(c, at::kFloat, nullptr, D);
    const auto got = gradients(roomy, x);
    EXPECT_EQ(roomy.forward(x.detach(), {}, kTraining).stats.dropped.item<int64_t>(), 0);
    EXPECT_EQ(got.size(), want.size());
    for (const auto& [name, w] : want) {
      const double apart = (got.at(name) - w).norm().item<double>();
      EXPECT_LE(apart, 1e-5 * (1 + w.norm().item<double>())) << name << " of " << E << ", " << K;
    }
    c.capacity.factor = 0.9 * factor;
    MoeLayer narrow = layer_of(c, at::kFloat, nullptr, D);
    EXPECT_GT(narrow.forward(x.detach(), {}, kTraining).stats.dropped.item<int64_t>(), 0);
  }
}

TEST(MoeLayer, R10_C6_APaddedCapacityDoesNotFreezeTheBias) {
  MoeConfig c = config_of();
  c.router = SigmoidBiasRouting{};
  c.capacity = {.factor = 1, .pad = true};
  MoeLayer layer = layer_of(c, at::kFloat);
  const MoeOutput out = layer.forward(input(31, at::kFloat), {}, kTraining);
  EXPECT_GT(out.stats.dropped.item<int64_t>(), 0);
  layer.end_of_step();
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    if (name != "router.balance_bias") return;
    const at::Tensor under = 62 - out.stats.counts_E * 6;  // by the choices before dropping
    EXPECT_TRUE(p.value.equal(under.sign().to(at::kFloat) * 1e-3f));
    EXPECT_GT(p.value.abs().sum().item<double>(), 0);
  });
}

TEST(MoeLayer, M2_RecomputingTheLayerChangesNoBitAndCountsOnce) {
  MoeConfig c = config_of();
  c.latent = 4;
  SigmoidBiasRouting router;
  router.balance.seq_loss = 0.1;
  c.router = router;
  MoeLayer plain = layer_of(c, at::kFloat);
  c.ffn.recompute = Recompute::kLayer;
  MoeLayer twice = layer_of(c, at::kFloat);
  const at::Tensor x = input(24, at::kFloat);
  expect_same(gradients(twice, x), gradients(plain, x));
  at::Tensor counted;
  twice.end_of_step([&](const at::Tensor& own) { return counted = own; });
  EXPECT_EQ(counted.sum().item<int64_t>(), 48);
}

// x has three users then, router, experts and shared expert; a gate makes it four.
TEST(MoeLayer, M2_RecomputingWithASharedExpertChangesNoBit) {
  for (const SharedForm form : {SharedForm::kSum, SharedForm::kWeighted, SharedForm::kGate}) {
    for (const int64_t latent : {0, 4}) {
      MoeConfig c = config_of();
      c.shared = {.experts = 1, .form = form};
      c.latent = latent;
      MoeLayer plain = layer_of(c, at::kFloat);
      c.ffn.recompute = Recompute::kLayer;
      MoeLayer twice = layer_of(c, at::kFloat);
      const at::Tensor x = input(24, at::kFloat);
      expect_same(gradients(twice, x), gradients(plain, x));
    }
  }
}

TEST(MoeLayer, A8_RecomputeChangesNoReportedLoss) {
  MoeConfig c = config_of();
  auto& balance = std::get<TopkSoftmaxRouting>(c.router).balance;
  balance.seq_loss = 0.1, balance.z_loss = 0.01;
  MoeLayer plain = layer_of(c);
  c.ffn.recompute = Recompute::kLayer;
  MoeLayer twice = layer_of(c);
  const at::Tensor x = input(24);
  const auto want = plain.forward(x, {}, kTraining).losses,
             got = twice.forward(x, {}, kTraining).losses;
  ASSERT_EQ(got.size(), 3u);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].reported(), want[i].reported());
}

TEST(MoeLayer, SH4_BesideTheDispatchEqualsAfterTheCombineBitForBit) {
  for (const SharedForm form : {SharedForm::kSum, SharedForm::kWeighted, SharedForm::kGate}) {
    MoeConfig c = config_of();
    c.shared = {.experts = 2, .form = form};
    const at::Tensor x = input(24, at::kFloat);
    const auto run = [&](bool overlap) {
      c.shared.overlap = overlap;
      MoeLayer layer = layer_of(c, at::kFloat, virtual_ranks_dispatcher(contiguous(6, 3)));
      return gradients(layer, x);
    };
    expect_same(run(true), run(false));
  }
}

// An expert's width split over two ranks (ETP): b1 with its half, b2 on one of them alone.
TEST(MoeLayer, X6_TwoSlicesOfAnExpertSumToItWithTheOutputBiasOnOne) {
  const int64_t F = 6, half = F / 2;
  const at::Tensor x = at::randn({9, kD}, at::kDouble);
  const at::Tensor w1 = at::randn({1, 2, F, kD}, at::kDouble),
                   b1 = at::randn({1, 2, F}, at::kDouble);
  const at::Tensor w2 = at::randn({1, kD, F}, at::kDouble), b2 = at::randn({1, kD}, at::kDouble);
  const auto part = [&](int64_t from, int64_t width, bool with_b2) {
    const ExpertWeights w{w1.narrow(2, from, width).reshape({1, 2 * width, kD}),
                          b1.narrow(2, from, width).reshape({1, 2 * width}),
                          w2.narrow(2, from, width).contiguous(),
                          with_b2 ? std::optional(b2) : std::nullopt};
    return dense_ffn(x, w, {});
  };
  const at::Tensor both = part(0, half, true) + part(half, half, false);
  EXPECT_LT((both - part(0, F, true)).abs().max().item<double>(), 1e-12);
}

TEST(MoeLayer, X7_LoopEqualsGrouped) {
  MoeConfig c = config_of();
  c.ffn.bias = true;
  MoeLayer grouped = layer_of(c);
  c.ffn.impl = ExpertsImpl::kLoop;
  MoeLayer loop = layer_of(c);
  const at::Tensor x = input(24);
  expect_same(gradients(loop, x), gradients(grouped, x), 1e-11);
}

TEST(MoeLayer, X5_ScoreOnTheInputNeedsOneChoice) {
  MoeConfig c = config_of(4, 1);
  c.ffn.score_on_input = true;
  c.router = SigmoidBiasRouting{};
  MoeLayer layer = layer_of(c);
  const at::Tensor x = input(10).detach();
  const RouterOutput r = layer.router().forward(x, {}, {});
  MoeConfig plain = config_of(4, 1);
  const MoeOutput out = layer.forward(x, {}, {});
  for (int64_t t = 0; t < 10; ++t) {
    const int64_t e = r.ids_TK[t][0].item<int64_t>();
    const ExpertWeights w{layer.experts().w1.value.narrow(0, e, 1), std::nullopt,
                          layer.experts().w2.value.narrow(0, e, 1), std::nullopt};
    const at::Tensor want = dense_ffn((x[t] * r.weights_TK[t]).unsqueeze(0), w, {});
    EXPECT_LT((out.y[t] - want[0]).abs().max().item<double>(), 1e-12);
  }
  plain.top_k = 2;
  plain.ffn.score_on_input = true;
  EXPECT_THROW(layer_of(plain), Error);
}

TEST(MoeLayer, Q3_TheNineMegaBlocksConfigurations) {
  const int64_t cases[9][7] = {
      {1, 2, 128, 2, 2, -1, -1}, {1, 8, 128, 2, 2, -1, 4}, {2, 8, 128, 2, 1, -1, 8},
      {1, 2, 128, 2, 1, 4, -1},  {2, 8, 128, 4, 1, 8, -1}, {2, 2, 128, 2, 2, 4, 4},
      {1, 8, 128, 4, 2, 4, 8},   {1, 2, 128, 4, 2, 8, 4},  {2, 2, 128, 4, 2, 8, 8}};
  at::manual_seed(1);
  for (const auto& [B, S, h, E, k, inputs, rematerialize] : cases) {
    MoeConfig c = config_of(E, k);
    c.ffn.hidden = h;
    MoeLayer plain = layer_of(c, at::kFloat);
    c.ffn.quantize = {.inputs = inputs, .rematerialize = rematerialize};
    MoeLayer saved = layer_of(c, at::kFloat);
    const at::Tensor x = at::randn({B, S, kD}).requires_grad_();
    const auto want = gradients(plain, x), got = gradients(saved, x);
    EXPECT_TRUE(got.at("y").equal(want.at("y")));
    const MoeStats stats = saved.forward(x, {}, kTraining).stats;
    EXPECT_EQ(stats.saturated.defined(), inputs > 0 || rematerialize > 0);
    if (stats.saturated.defined()) {
      EXPECT_EQ(stats.saturated.item<int64_t>(), 0);
    }
    const int64_t worst =
        std::min(inputs < 0 ? 16 : inputs, rematerialize < 0 ? 16 : rematerialize);
    for (const auto& [name, w] : want) {
      // The router's gradient is a small difference of large sums, and 4 bits are few for it.
      const double bound = worst == 16 ? 0 : worst == 8 ? 0.1 : 1;
      EXPECT_LE((got.at(name) - w).norm().item<double>(), bound * w.norm().item<double>()) << name;
    }
  }
}

TEST(MoeLayer, R13_ExpertChoiceFillsEachExpertAndItsGradientsAgree) {
  MoeConfig c = config_of();
  c.router = ExpertChoiceRouting{};
  MoeLayer grouped = layer_of(c);
  c.ffn.impl = ExpertsImpl::kLoop;
  MoeLayer loop = layer_of(c);
  const at::Tensor x = input(24);
  EXPECT_TRUE(grouped.forward(x, {}, {}).stats.counts_E.eq(8).all().item<bool>());
  expect_same(gradients(loop, x), gradients(grouped, x), 1e-11);
}

TEST(MoeLayer, C8_ACapacityExcludesRoutersThatBalanceByThemselves) {
  MoeConfig c = config_of();
  c.capacity.factor = 1;
  c.router = ExpertChoiceRouting{};
  EXPECT_THROW(layer_of(c), Error);
  c.router = QuantileRouting{};
  EXPECT_THROW(layer_of(c), Error);
  c.router = SinkhornRouting{};
  EXPECT_THROW(layer_of(c), Error);
}

// All tokens to the experts of one of three ranks, and room for the even share and a half.
TEST(MoeLayer, C7_AnOverflowIsSeenAndTheStepIsDoneAgainWithoutTheBudget) {
  MoeConfig c = config_of();
  c.router = SigmoidBiasRouting{};
  const auto skewed = [&](double budget) {
    c.capacity.budget = budget;
    MoeLayer layer = layer_of(c, at::kFloat, virtual_ranks_dispatcher(contiguous(6, 3)));
    for_each_param(layer, "", [](const std::string& name, Param& p) {
      if (name == "router.balance_bias") p.value.narrow(0, 0, 2).fill_(10);
    });
    return layer;
  };
  MoeLayer dropless = skewed(0), tight = skewed(0.5), roomy = skewed(1);
  const at::Tensor x = input(40, at::kFloat);
  const auto want = gradients(dropless, x);
  EXPECT_FALSE(dropless.lost_rows().defined());
  expect_same(gradients(roomy, x), want);
  EXPECT_EQ(roomy.lost_rows().item<int64_t>(), 0);

  EXPECT_FALSE(gradients(tight, x).at("y").equal(want.at("y")));
  EXPECT_EQ(tight.lost_rows().item<int64_t>(), 40);  // of 80 rows
  EXPECT_EQ(tight.lost_rows().item<int64_t>(), 0);   // said once
  tight.forget_step();
  Context again = kTraining;
  again.budgeted = false;
  expect_same(gradients(tight, x, {}, again), want);
  EXPECT_EQ(tight.lost_rows().item<int64_t>(), 0);
  EXPECT_EQ(tight.forward(x, {}, {}).stats.dropped.defined(), false);
}

TEST(MoeLayer, R14_TheFirstMoeLayersMayBeRoutedByATable) {
  MoeConfig c = config_of();
  c.table_layers = 2;
  const auto forward_of = [&](int64_t moe_index) {
    MoeShape shape = MoeShape::alone(kD);
    shape.moe_layers = 4, shape.vocab = 50, shape.moe_index = moe_index;
    MoeLayer layer(c, shape);
    for_each_param(layer, "", [](const std::string& name, Param& p) {
      p.allocate(at::TensorOptions(at::kFloat));
      initialize(p, name, 1);
    });
    return layer.forward(input(12, at::kFloat), {.ids_T = at::arange(12)}, kTraining);
  };
  const at::Tensor table = at::arange(12).remainder(6).to(at::kInt);
  EXPECT_TRUE(forward_of(1).ids_TK.select(1, 0).equal(table));
  EXPECT_TRUE(forward_of(1).losses.empty());
  EXPECT_FALSE(forward_of(2).ids_TK.select(1, 0).equal(table));
  EXPECT_FALSE(forward_of(2).losses.empty());
  EXPECT_THROW(validate(c, MoeShape::alone(kD)), Error);  // a model of one MoE layer
}

TEST(MoeLayer, A5_BalancingNoneLearnsFromTheModelsLossAlone) {
  MoeConfig c = config_of();
  auto& balance = std::get<TopkSoftmaxRouting>(c.router).balance;
  MoeLayer with = layer_of(c);
  balance = {};
  MoeLayer none = layer_of(c);
  const at::Tensor x = input(20);
  EXPECT_TRUE(none.forward(x, {}, kTraining).losses.empty());
  // The router's gradient with the loss, less the loss's own, is the one without.
  const auto got = gradients(none, x), all = gradients(with, x);
  for_each_param(with, "", [](const std::string&, Param& p) { p.value.mutable_grad().reset(); });
  with.forward(x.detach(), {}, kTraining).losses.at(0).value.backward();
  at::Tensor own;
  for_each_param(with, "", [&](const std::string& name, Param& p) {
    if (name == "router.weight") own = p.value.grad();
  });
  EXPECT_GT(own.abs().max().item<double>(), 1e-6);
  EXPECT_LT((all.at("router.weight") - own - got.at("router.weight")).abs().max().item<double>(),
            1e-12);
}

TEST(MoeLayer, R15_AReplayedStepIsBitwiseEqual) {
  for (const std::string_view kind : RouterConfig::kinds()) {
    MoeConfig c = config_of();
    ASSERT_TRUE(c.router.select(kind));
    MoeLayer layer = layer_of(c, at::kFloat);
    const at::Tensor x = input(24, at::kFloat);
    Tokens tokens{.ids_T = at::arange(24)};
    RoutingTrace trace;
    trace.record(1, 0, layer.forward(x, tokens, kTraining).ids_TK, 6);
    const auto first = gradients(layer, x, tokens);
    tokens.replay_TK = trace.replay(1, 0, at::kCPU);
    expect_same(gradients(layer, x, tokens), first);
  }
}

TEST(MoeLayer, R15_EveryLayersTracedCountsSumToItsChoices) {
  MoeLayer layer = layer_of(config_of());
  const at::Tensor valid = at::arange(24).remainder(5).ne(0);
  const MoeOutput out = layer.forward(input(24), {.valid_T = valid}, kTraining);
  RoutingTrace trace;
  trace.record(1, 0, out.ids_TK, 6, out.logits_TE);
  EXPECT_EQ(trace.counts(1, 0).sum().item<int64_t>(), valid.sum().item<int64_t>() * 2);
  EXPECT_TRUE(trace.counts(1, 0).equal(out.stats.counts_E));
  EXPECT_TRUE(trace.logits(1, 0).equal(out.logits_TE.to(at::kFloat)));
}

// Bytes that the process holds, as the kernel counts them.
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

// Also with evaluation in between and a recomputed layer, whose first pass keeps nothing.
TEST(MoeLayer, E20_AThousandSizesGrowNothing) {
  MoeConfig c = config_of();
  c.shared.experts = 1;
  SigmoidBiasRouting router;
  router.balance.global_loss = router.balance.z_loss = 0.1;
  c.router = router;
  MoeLayer plain = layer_of(c, at::kFloat);
  c.ffn.recompute = Recompute::kLayer;
  MoeLayer twice = layer_of(c, at::kFloat);
  std::mt19937 random(4);
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      MoeLayer& layer = i % 2 == 0 ? plain : twice;
      const at::Tensor x = input(static_cast<int64_t>(random() % 100), at::kFloat);
      gradients(layer, x);
      layer.forward(x, {}, {});
      layer.end_of_step();
    }
  };
  for (MoeLayer* layer : {&plain, &twice}) gradients(*layer, input(100, at::kFloat));
  steps(200);
  const int64_t before = resident_bytes();
  steps(800);
  EXPECT_LT(resident_bytes() - before, int64_t{4} << 20);
}

TEST(MoeLayer, E1_E15_NoTokensOrNoValidOnes) {
  MoeConfig c = config_of();
  c.shared.experts = 1;
  MoeLayer layer = layer_of(c);
  const auto none = gradients(layer, input(0));
  EXPECT_EQ(none.at("y").sizes(), (at::IntArrayRef{0, kD}));
  for (const auto& [name, g] : none) EXPECT_TRUE(g.eq(0).all().item<bool>()) << name;
  const auto invalid = gradients(layer, input(5), {.valid_T = at::zeros({5}, at::kBool)});
  EXPECT_TRUE(invalid.at("experts.w1").eq(0).all().item<bool>());
  EXPECT_TRUE(invalid.at("router.weight").eq(0).all().item<bool>());
}

TEST(MoeLayer, E3_E7_E8_OddNumbersOfTokensAndExperts) {
  for (const auto& [E, K] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{60, 7}, std::pair{8, 8}}) {
    MoeLayer layer = layer_of(config_of(E, K));
    for (const int64_t T : {1, 2, 129}) {
      const MoeOutput out = layer.forward(input(T), {}, kTraining);
      EXPECT_EQ(out.stats.counts_E.sum().item<int64_t>(), T * K);
      EXPECT_TRUE(out.y.isfinite().all().item<bool>());
    }
  }
}

TEST(MoeLayer, E8_ManyExpertsAndOddWidths) {
  const at::NoGradGuard no_grad;
  for (const auto& [E, F] :
       {std::pair{1000, 1}, std::pair{70000, 1}, std::pair{3, 100}, std::pair{2, 1408}}) {
    MoeConfig c = config_of(E, 2);
    c.ffn.hidden = F;
    MoeLayer layer = layer_of(c);
    const at::Tensor x = input(7).detach();
    const at::Tensor y = layer.forward(x, {}, {}).y;
    EXPECT_LT((y - plain_loops(layer, x)).abs().max().item<double>(), 1e-10) << E;
    EXPECT_GT(y.abs().max().item<double>(), 0) << E;
  }
}

TEST(MoeLayer, E16_StridedAndBroadcastInputs) {
  MoeLayer layer = layer_of(config_of());
  const at::Tensor x = at::randn({kD, 10}, at::kDouble);
  EXPECT_TRUE(layer.forward(x.t(), {}, {}).y.equal(layer.forward(x.t().contiguous(), {}, {}).y));
  const at::Tensor row = at::randn({1, kD}, at::kDouble).expand({6, kD});
  EXPECT_TRUE(layer.forward(row, {}, {}).y.equal(layer.forward(row.contiguous(), {}, {}).y));
}

TEST(MoeLayer, E18_EvaluationBetweenStepsChangesNothing) {
  MoeConfig c = config_of();
  SigmoidBiasRouting router;
  router.balance.global_loss = 0.1;
  router.gate.jitter = 0.1;
  c.router = router;
  MoeLayer a = layer_of(c, at::kFloat), b = layer_of(c, at::kFloat);
  const at::Tensor x = input(16, at::kFloat), other = input(16, at::kFloat).detach();
  gradients(a, x), gradients(b, x);
  a.forward(other, {}, {});
  a.end_of_step(), b.end_of_step();
  a.forward(other, {}, {});
  expect_same(gradients(a, x), gradients(b, x));
}

TEST(MoeLayer, N1_TheCountIsThatOfTheParameters) {
  MoeConfig c = config_of();
  c.shared = {.experts = 2, .form = SharedForm::kGate};
  c.latent = 3;
  c.output_bias = c.ffn.bias = true;
  std::get<TopkSoftmaxRouting>(c.router).gate.bias = true;
  MoeLayer layer = layer_of(c);
  int64_t params = 0;
  for_each_param(layer, "", [&](const std::string&, Param& p) {
    if (p.trainable()) params += c10::multiply_integers(p.global);
  });
  EXPECT_EQ(moe_params(sizes_of(c, MoeShape::alone(kD))), params);
}

TEST(MoeLayer, TheConfigReadsAndRefuses) {
  MoeConfig c;
  read_config(override_yaml("router.kind=sigmoid_bias"), c);
  EXPECT_EQ(c.router.kind(), "sigmoid_bias");
  EXPECT_THROW(validate(config_of(2, 3), MoeShape::alone(kD)), Error);
  MoeConfig odd = config_of();
  odd.return_bias = true;
  EXPECT_THROW(validate(odd, MoeShape::alone(kD)), Error);
}

// Section 15.
TEST(MoeLayer, Defaults) {
  const MoeConfig c;
  EXPECT_EQ(c.experts, 0);
  EXPECT_EQ(c.top_k, 2);
  EXPECT_EQ(c.router.kind(), "topk_softmax");
  const auto& r = std::get<TopkSoftmaxRouting>(c.router);
  EXPECT_EQ(r.order, SoftmaxOrder::kAuto);  // after; before for k = 1
  EXPECT_EQ(r.p_norm, 0);
  EXPECT_EQ(r.balance.aux_loss, 1e-2);
  EXPECT_EQ(r.balance.z_loss, 0);
  EXPECT_EQ(r.gate.jitter, 0);
  EXPECT_EQ(SigmoidBiasRouting{}.bias_rate, 1e-3);
  EXPECT_EQ(c.capacity.factor, 0);
  EXPECT_EQ(c.capacity.policy, DropPolicy::kProbs);
  EXPECT_FALSE(c.capacity.pad);
  EXPECT_EQ(c.ffn.form.activation, "silu");
  EXPECT_TRUE(c.ffn.form.gated);
  EXPECT_FALSE(c.ffn.bias || c.output_bias);
  EXPECT_EQ(c.shared.experts, 0);
  EXPECT_EQ(c.ffn.init.std, 0.02);
  EXPECT_DOUBLE_EQ(c.ffn.init.down(8).std, 0.02 / 4);
  EXPECT_EQ(c.ffn.quantize.inputs, -1);
  EXPECT_EQ(c.ffn.quantize.rematerialize, -1);
  EXPECT_EQ(c.ffn.quantize.scatter, -1);
}

}  // namespace
}  // namespace troupe
