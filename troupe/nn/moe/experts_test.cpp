#include "troupe/nn/moe/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/nn/moe/experts_problem_test.h"
#include "troupe/nn/moe/shared_expert.h"
#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

using namespace experts_problem;

constexpr int64_t kF = 7;

TEST(Experts, X1_X2_X3_X4_X6_X7_GroupedEqualsTheLoopInAllGradients) {
  for (Case c : forms(kF)) {
    const ExpertRows rows = rows_of(c.type);
    Experts grouped = experts_of(c);
    c.config.impl = ExpertsImpl::kLoop;
    Experts loop = experts_of(c);
    SCOPED_TRACE(c.config.form.activation);
    expect_close(results(grouped, rows), results(loop, rows), 1e-9);
  }
}

// Blocks have a test of their own: they need wider experts.
TEST(Experts, X7_LowPrecisionAgreesWithF64OverUnequalGroups) {
  for (const ExpertsImpl impl : {ExpertsImpl::kGrouped, ExpertsImpl::kLoop}) {
    for (const auto& [type, bound] : {std::pair{at::kFloat, 1e-6}, std::pair{at::kBFloat16, 1.6e-2},
                                      std::pair{at::kHalf, 1e-2}}) {
      SCOPED_TRACE(std::string(at::toString(type)) + (impl == ExpertsImpl::kLoop ? " loop" : ""));
      Case c = forms(kF)[0];
      c.type = type;
      c.config.impl = impl;
      const ExpertRows rows = rows_of(type);
      Experts narrow = experts_of(c);
      c.type = at::kDouble;
      c.config.impl = ExpertsImpl::kLoop;
      Experts exact = experts_of(c);
      const auto widen = [](Param& to, const Param& from) {
        to.value = from.value.detach().to(at::kDouble).requires_grad_();
      };
      widen(exact.w1, narrow.w1);
      widen(exact.w2, narrow.w2);
      const ExpertRows wide{.source_SD = rows.source_SD.detach().to(at::kDouble).requires_grad_(),
                            .scores_SK = rows.scores_SK.detach().to(at::kDouble).requires_grad_(),
                            .plan = rows.plan};
      expect_close(results(narrow, rows), results(exact, wide), bound);
    }
  }
}

TEST(Experts, P3_PaddedSegmentsChangeNothing) {
  const Case c = forms(kF).back();
  Experts m = experts_of(c);
  const ExpertRows rows = rows_of(c.type);
  const auto want = results(m, rows);
  at::Tensor ids = at::full({kT * kK}, -1, at::kInt);
  for (int64_t e = 0; e < kE; ++e) {  // the plan's ids again
    for (int64_t r = rows.plan.expert_offset[e].item<int32_t>();
         r < rows.plan.expert_offset[e + 1].item<int32_t>(); ++r) {
      ids[rows.plan.row_slot[r].item<int64_t>()] = e;
    }
  }
  for (const int64_t a : {16, 32, 128}) {
    ExpertRows padded = rows;
    padded.plan = testing::plan_of(ids.reshape({kT, kK}), kE, a);
    expect_close(results(m, padded), want, 1e-12);
  }
}

TEST(Experts, E2_AnExpertWithoutTokensHasZeroGradientsWritten) {
  Case c = forms(kF).back();
  c.type = at::kFloat;
  Experts m = experts_of(c);
  results(m, rows_of(c.type));
  for (const Param* p : {&m.w1, &m.w2, &*m.b1, &*m.b2}) {
    EXPECT_TRUE(p->value.grad()[1].eq(0).all().item<bool>());
  }
}

TEST(Experts, X4_GradientIsExactlyZeroBeyondTheClamp) {
  Case c = forms(kF)[0];
  c.config.form.clamp = 1e-9;  // everything is beyond
  Experts m = experts_of(c);
  results(m, rows_of(c.type));
  const at::Tensor up = m.w1.value.grad().narrow(1, kF, kF);
  EXPECT_GT(m.w2.value.grad().abs().max().item<double>(), 0);
  EXPECT_TRUE(up.eq(0).all().item<bool>());
}

TEST(Experts, X5_ScoreOnTheInputIsFOfPX) {
  Case c = forms(kF)[0];
  c.config.score_on_input = true;
  Experts m = experts_of(c);
  const ExpertRows rows = rows_of(c.type, 1, /*K=*/1);
  c.config.score_on_input = false;
  Experts plain = experts_of(c);
  ExpertRows scaled = rows;
  scaled.source_SD = rows.source_SD * rows.scores_SK;
  scaled.scores_SK = at::ones_like(rows.scores_SK);
  EXPECT_TRUE(m.forward(rows).y_SD.equal(plain.forward(scaled).y_SD));
  m.forward(rows).y_SD.sum().backward();
  EXPECT_GT(rows.scores_SK.grad().abs().max().item<double>(), 0);
}

TEST(Experts, X8_EachSubsetAloneEqualsTheFullGradients) {
  const Case c = forms(kF).back();
  const ExpertRows rows = rows_of(c.type);
  Experts m = experts_of(c);
  const auto inputs = leaves(m, rows);
  const auto want = results(m, rows);
  for (size_t mask = 1; mask + 1 < (size_t{1} << inputs.size()); ++mask) {
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].set_requires_grad((mask >> i & 1) != 0);
    for (const at::Tensor& x : inputs) x.mutable_grad().reset();
    const at::Tensor y = m.forward(rows).y_SD;
    (y * at::arange(y.numel(), at::kDouble).cos().reshape(y.sizes())).sum().backward();
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(inputs[i].grad().defined(), (mask >> i & 1) != 0);
      if (!inputs[i].grad().defined()) continue;
      EXPECT_TRUE(inputs[i].grad().equal(want[i + 1])) << mask;
    }
  }
}

TEST(Experts, X8_AdaptersStartAtTheBaseAndLearnAlone) {
  Case c = forms(kF)[0];
  Experts base = experts_of(c);
  c.config.lora.rank = 3;
  Experts m = experts_of(c);
  const ExpertRows rows = rows_of(c.type);
  m.w1_lora_b->value.detach().zero_();
  m.w2_lora_b->value.detach().zero_();
  // Scores are multiplied behind W2, which rounds otherwise.
  EXPECT_LT((m.forward(rows).y_SD - base.forward(rows).y_SD).abs().max().item<double>(), 1e-12);
  m = experts_of(c);
  results(m, rows);
  EXPECT_FALSE(m.w1.value.grad().defined());
  EXPECT_GT(m.w1_lora_a->value.grad().abs().max().item<double>(), 0);
  const at::Tensor merged = m.w1.value + (16.0 / 3) * m.w1_lora_b->value.bmm(m.w1_lora_a->value);
  base.w1.value = merged.detach();
  base.w2.value = (m.w2.value + (16.0 / 3) * m.w2_lora_b->value.bmm(m.w2_lora_a->value)).detach();
  EXPECT_LT((m.forward(rows).y_SD - base.forward(rows).y_SD).abs().max().item<double>(), 1e-12);
}

TEST(Experts, DropoutOfAdaptersIsOfTheTokenAndItsSlot) {
  Case c = forms(kF)[0];
  c.config.lora.rank = 3;
  const ExpertRows rows = rows_of(c.type);
  const Context context = {.training = true, .seed = 5, .step = 2, .layer = 1, .first_token = 40};
  Experts plain = experts_of(c);
  c.config.lora.dropout = 0.4;
  c.config.recompute = Recompute::kAct;
  Experts again = experts_of(c);
  c.config.recompute = Recompute::kNone;
  Experts m = experts_of(c);
  EXPECT_TRUE(m.forward(rows).y_SD.equal(plain.forward(rows).y_SD)) << "no training";
  const at::Tensor y = m.forward(rows, context).y_SD;
  EXPECT_FALSE(y.allclose(plain.forward(rows, context).y_SD));
  EXPECT_TRUE(m.forward(rows, context).y_SD.equal(y));
  // The graph that is computed again in backward has the same mask.
  const auto gradients = [&](Experts& experts) {
    std::vector<at::Tensor> out;
    const auto inputs = leaves(experts, rows);
    for (const at::Tensor& x : inputs) x.mutable_grad().reset();
    experts.forward(rows, context).y_SD.square().sum().backward();
    for (const at::Tensor& x : inputs) out.push_back(x.grad().clone());
    return out;
  };
  const auto kept = gradients(m), recomputed = gradients(again);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(recomputed[i])) << i;
  // Tokens by their index, in place of the first one's.
  Context named = context;
  named.first_token = 0;
  named.index_T = at::arange(40, 40 + kT, at::kLong);
  EXPECT_TRUE(m.forward(rows, named).y_SD.equal(y));
}

TEST(Experts, DropoutOfAdaptersWithSomeOfTheExpertsIsRefused) {
  ExpertsConfig config = forms(kF)[0].config;
  config.lora.rank = 3;
  config.lora.dropout = 0.4;
  Experts m(
      config,
      {.width = kD, .experts = 2 * kE, .layers = 2, .held = std::vector<int64_t>{0, 1, 2, 3, 4}});
  for_each_param(m, "experts", [&](const std::string& name, Param& p) {
    p.allocate(at::kDouble);
    initialize(p, name, 3);
  });
  TROUPE_EXPECT_REFUSAL(m.forward(rows_of(at::kDouble), {.training = true}), "parallel.expert 1");
}

TEST(Experts, M2_RecomputingHChangesNoBit) {
  Case c = forms(kF).back();
  c.type = at::kFloat;
  const ExpertRows rows = rows_of(c.type);
  Experts keeps = experts_of(c);
  c.config.recompute = Recompute::kExpert;
  Experts again = experts_of(c);
  const auto a = results(keeps, rows), b = results(again, rows);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

// The output rows are not kept: there is nothing that its bits could pack.
TEST(Experts, Q3_ScatterBitsChangeNoBit) {
  Case c = forms(kF).back();
  c.type = at::kFloat;
  const ExpertRows rows = rows_of(c.type);
  Experts plain = experts_of(c);
  c.config.quantize.scatter = 4;
  Experts packed = experts_of(c);
  const auto a = results(plain, rows), b = results(packed, rows);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
  EXPECT_FALSE(packed.forward(rows).saturated.defined());
}

TEST(Experts, Q3_TheForwardUsesUnquantizedValuesAndEachKnobItsOwnGradients) {
  Case c = forms(kF)[0];
  c.type = at::kFloat;
  const ExpertRows rows = rows_of(c.type);
  Experts plain = experts_of(c);
  const auto want = results(plain, rows);  // y, x, scores, w1, w2
  c.config.quantize.inputs = 8;
  Experts inputs = experts_of(c);
  const auto a = results(inputs, rows);
  for (const size_t same : {0, 1, 2, 4}) EXPECT_TRUE(a[same].equal(want[same])) << same;
  EXPECT_FALSE(a[3].equal(want[3]));
  expect_close(a, want, 3e-2);
  c.config.quantize = {.rematerialize = 8};
  Experts hidden = experts_of(c);
  const auto b = results(hidden, rows);
  EXPECT_TRUE(b[0].equal(want[0]));
  EXPECT_FALSE(b[4].equal(want[4]));
  expect_close(b, want, 5e-2);
  c.config.quantize = {.scatter = 4};
  Experts scatter = experts_of(c);
  const auto s = results(scatter, rows);
  for (size_t i = 0; i < s.size(); ++i) EXPECT_TRUE(s[i].equal(want[i])) << i;
}

TEST(Experts, Q2_ReportsTheGroupsThatFp16ScalesCannotHold) {
  Case c = forms(kF)[0];
  c.type = at::kFloat;
  const ExpertRows rows = rows_of(c.type);
  EXPECT_FALSE(experts_of(c).forward(rows).saturated.defined());
  c.config.quantize.inputs = 8;
  const Experts m = experts_of(c);
  const auto count = [&](const ExpertRows& r) { return m.forward(r).saturated.item<int64_t>(); };
  EXPECT_EQ(count(rows), 0);
  // An element over 127 * 65504 cuts its group's scale; two in one group of 32 are one.
  ExpertRows large = rows;
  large.source_SD = rows.source_SD.detach().clone();
  large.source_SD.view({-1})[3] = large.source_SD.view({-1})[31] = 1e7;
  large.source_SD.view({-1})[64] = -1e8;
  large.source_SD.requires_grad_();
  EXPECT_EQ(count(large), 2);
}

TEST(Experts, E1_NoTokens) {
  Case c = forms(kF).back();
  Experts m = experts_of(c);
  const ExpertRows rows{.source_SD = at::zeros({0, kD}, at::kDouble).requires_grad_(),
                        .scores_SK = at::zeros({0, kK}, at::kDouble).requires_grad_(),
                        .plan = testing::plan_of(at::zeros({0, kK}, at::kInt), kE)};
  const at::Tensor y = m.forward(rows).y_SD;
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, kD}));
  y.sum().backward();
  EXPECT_TRUE(m.w1.value.grad().eq(0).all().item<bool>());
}

TEST(Experts, RefusesWhatCannotBeAndSaysWhy) {
  const auto refusal = [](auto&& change, int64_t top_k = 2) {
    ExpertsConfig c;
    c.hidden = 8;
    validate(c, top_k);
    change(c);
    try {
      validate(c, top_k);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal([](auto& c) { c.form.activation = "swish"; }), "swish");
  has(refusal([](auto& c) { c.hidden = 0; }), "hidden");
  has(refusal([](auto& c) { c.form.clamp = -1; }), "clamp");
  has(refusal([](auto& c) { c.form.gated = false, c.form.offset = 1; }), "gated");
  has(refusal([](auto& c) { c.score_on_input = true; }), "top_k 1");
  has(refusal([](auto& c) { c.quantize.inputs = 3; }), "inputs 3");
  has(refusal([](auto& c) { c.impl = ExpertsImpl::kLoop, c.recompute = Recompute::kExpert; }),
      "recompute");
  has(refusal([](auto& c) { c.impl = ExpertsImpl::kLoop, c.quantize.inputs = 8; }), "grouped");
  has(refusal([](auto& c) { c.impl = ExpertsImpl::kLoop, c.quantize.scatter = 8; }), "grouped");
  has(refusal([](auto& c) { c.impl = ExpertsImpl::kBlockSparse; }), "multiple of 128");
  const auto again = [](Recompute level) {
    return [level](auto& c) { c.recompute = level, c.quantize.rematerialize = 8; };
  };
  has(refusal(again(Recompute::kExpert)), "keeps no H");
  has(refusal(again(Recompute::kLayer)), "keeps nothing");
}

SharedExpert shared_of(SharedForm form) {
  ExpertsConfig routed;
  routed.hidden = 4;
  SharedExpert m({.experts = 2, .form = form}, routed, kD, 2);
  for_each_param(m, "shared", [](const std::string& name, Param& p) {
    p.init = {.kind = Init::kNormal, .std = 0.5};
    p.allocate(at::TensorOptions(at::kDouble));
    initialize(p, name, 1);
  });
  return m;
}

TEST(SharedExpert, SH1_IsAFeedForwardOfTheJointWidthAdded) {
  const SharedExpert m = shared_of(SharedForm::kSum);
  EXPECT_EQ(m.w1.value.sizes(), (at::IntArrayRef{16, kD}));
  const at::Tensor x = at::randn({5, kD}, at::kDouble), routed = at::randn({5, kD}, at::kDouble);
  const at::Tensor h = at::linear(x, m.w1.value);
  const at::Tensor want = at::linear(at::silu(h.narrow(1, 0, 8)) * h.narrow(1, 8, 8), m.w2.value);
  EXPECT_LT((m.forward(x, x.size(0)) - want).abs().max().item<double>(), 1e-12);
  EXPECT_LT((m.add(routed, m.forward(x, x.size(0)), 3) - routed - want).abs().max().item<double>(),
            1e-12);
}

TEST(SharedExpert, SH2_WeighsSharedAndRouted) {
  const SharedExpert m = shared_of(SharedForm::kWeighted);
  const at::Tensor a = at::ones({2, kD}, at::kDouble) * 8, b = at::ones({2, kD}, at::kDouble) * 4;
  EXPECT_TRUE(m.add(a, b, 3).equal(at::ones({2, kD}, at::kDouble) * 7));  // 4 / 4 + 8 * 3 / 4
}

TEST(SharedExpert, SH3_AGateWithGradientsToXAndW) {
  const SharedExpert m = shared_of(SharedForm::kGate);
  const SharedExpert plain = shared_of(SharedForm::kSum);
  const at::Tensor x = at::randn({5, kD}, at::kDouble).requires_grad_();
  const at::Tensor gate = at::linear(x, m.gate->value).sigmoid();
  EXPECT_LT(
      (m.forward(x, x.size(0)) - plain.forward(x, x.size(0)) * gate).abs().max().item<double>(),
      1e-12);
  m.forward(x, x.size(0)).sum().backward();
  EXPECT_GT(m.gate->value.grad().abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace troupe
