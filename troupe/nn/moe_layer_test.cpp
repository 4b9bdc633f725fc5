#include "troupe/nn/moe_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>

#include "troupe/core/check.h"
#include "troupe/core/config.h"
#include "troupe/dist/local_dispatcher.h"
#include "troupe/nn/loss_edge.h"

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
                  std::unique_ptr<Dispatcher> dispatcher = nullptr) {
  MoeLayer layer(config, {.width = kD, .layers = 2}, std::move(dispatcher));
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    if (name == "moe.router.weight") p.init.std = 0.7;
    p.allocate(at::TensorOptions(type));
    initialise(p, name, 11);
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

TEST(MoeLayer, AgreesWithPlainLoops) {
  MoeLayer layer = layer_of(config_of());
  const at::Tensor x = input(20).detach();
  const MoeOutput out = layer.forward(x, {}, {});
  const RouterOutput r = layer.router().forward(x, {}, {});
  for (int64_t t = 0; t < 20; ++t) {
    at::Tensor want = at::zeros({kD}, at::kDouble);
    for (int64_t k = 0; k < 2; ++k) {
      const int64_t e = r.ids_TK[t][k].item<int64_t>();
      const at::Tensor h = layer.experts().w1.value[e].mv(x[t]);
      const at::Tensor g = h.narrow(0, 0, 5), u = g * g.sigmoid() * h.narrow(0, 5, 5);
      want = want + r.weights_TK[t][k] * layer.experts().w2.value[e].mv(u);
    }
    EXPECT_LT((out.y[t] - want).abs().max().item<double>(), 1e-12);
  }
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

// Here x has three users, whose gradients PyTorch adds in another order.
TEST(MoeLayer, M2_RecomputingWithASharedExpertChangesXsGradientByRoundingAlone) {
  MoeConfig c = config_of();
  c.shared.experts = 1;
  MoeLayer plain = layer_of(c, at::kFloat);
  c.ffn.recompute = Recompute::kLayer;
  MoeLayer twice = layer_of(c, at::kFloat);
  const at::Tensor x = input(24, at::kFloat);
  auto got = gradients(twice, x), want = gradients(plain, x);
  EXPECT_LT((got.at("x") - want.at("x")).abs().max().item<double>(), 1e-5);
  got.erase("x"), want.erase("x");
  expect_same(got, want);
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
    EXPECT_EQ(load_stats(stats).saturated, 0);
    const int64_t worst =
        std::min(inputs < 0 ? 16 : inputs, rematerialize < 0 ? 16 : rematerialize);
    for (const auto& [name, w] : want) {
      const double bound = worst == 16 ? 0 : worst == 8 ? 0.05 : 0.6;
      const double size = w.abs().max().item<double>();
      EXPECT_LE((got.at(name) - w).abs().max().item<double>(), bound * size) << name;
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
}

TEST(MoeLayer, R15_AReplayedStepIsBitwiseEqual) {
  MoeLayer layer = layer_of(config_of(), at::kFloat);
  const at::Tensor x = input(24, at::kFloat);
  const at::Tensor ids = layer.forward(x, {}, kTraining).ids_TK;
  const auto first = gradients(layer, x);
  expect_same(gradients(layer, x, {.replay_TK = ids}), first);
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
    if (p.trainable()) params += p.global_numel();
  });
  EXPECT_EQ(moe_params(sizes_of(c, {.width = kD})), params);
}

TEST(MoeLayer, TheConfigReadsAndRefuses) {
  MoeConfig c;
  read_config(override_yaml("router.kind=sigmoid_bias"), c);
  EXPECT_EQ(c.router.kind(), "sigmoid_bias");
  EXPECT_THROW(validate(config_of(2, 3), {.width = kD}), Error);
  MoeConfig odd = config_of();
  odd.return_bias = true;
  EXPECT_THROW(validate(odd, {.width = kD}), Error);
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
