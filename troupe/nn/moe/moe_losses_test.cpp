#include "troupe/nn/moe/moe_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/nn/moe/balance_forms.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

constexpr int64_t kE = 8, kK = 2;

at::Tensor logits(int64_t tokens) {
  return at::randn({tokens, kE}, at::kDouble);
}

// What a router hands over for B sequences of z, by plain ATen.
BalanceSums sums_of(const at::Tensor& z_TE, const at::Tensor& valid_T = {}, int64_t B = 1) {
  const int64_t T = z_TE.size(0), E = z_TE.size(1);
  const at::Tensor valid = valid_T.defined() ? valid_T : at::ones({T}, at::kBool);
  const at::Tensor probs = z_TE.softmax(1) * valid.unsqueeze(1);
  const at::Tensor ids = std::get<1>(at::topk(z_TE.detach(), kK));
  at::Tensor chosen = at::zeros({T, E}, at::kLong).scatter_(1, ids, 1) * valid.unsqueeze(1);
  return {.counts_BE = chosen.reshape({B, T / B, E}).sum(1),
          .probs_BE = probs.reshape({B, T / B, E}).sum(1),
          .tokens_B = valid.to(at::kLong).reshape({B, T / B}).sum(1),
          .ids_TK = ids.to(at::kInt).masked_fill(valid.logical_not().unsqueeze(1), -1),
          .lse_squares = (at::logsumexp(z_TE, {1}).square() * valid).sum()};
}

const Context kTraining{.training = true};

double lb_of(const at::Tensor& counts, const at::Tensor& probs, double n, double k = kK) {
  const auto E = static_cast<double>(counts.size(0));
  return E / (k * n * n) * (counts.to(at::kDouble) * probs).sum().item<double>();
}

std::vector<MoeLoss> run(const BalanceConfig& config, const BalanceSums& sums,
                         const LossSizes& sizes = {.top_k = kK},
                         const Context& context = kTraining) {
  FractionTracker tracker(kE);
  return moe_losses(config, sums, sizes, context, tracker);
}

double value(const std::vector<MoeLoss>& losses) {
  EXPECT_EQ(losses.size(), 1u);
  return losses.empty() ? NAN : losses[0].value.item<double>();
}

TEST(MoeLosses, A1_IsTheFormula) {
  const at::Tensor z = logits(37);
  const BalanceSums s = sums_of(z);
  const auto losses = run({.aux_loss = 0.3}, s);
  EXPECT_NEAR(value(losses), 0.3 * lb_of(s.counts_BE[0], s.probs_BE[0], 37), 1e-12);
  EXPECT_EQ(losses[0].name, "aux");
  EXPECT_NEAR(losses[0].reported(), lb_of(s.counts_BE[0], s.probs_BE[0], 37), 1e-12);
}

TEST(MoeLosses, A1_UniformProbabilitiesOrBalancedCountsGiveTheCoefficient) {
  BalanceSums s = sums_of(logits(40));
  const at::Tensor probs = s.probs_BE;
  s.probs_BE = at::full({1, kE}, 40.0 / kE, at::kDouble);
  EXPECT_NEAR(value(run({.aux_loss = 0.01}, s)), 0.01, 1e-15);
  s.probs_BE = probs;
  s.counts_BE = at::full({1, kE}, 40 * kK / kE, at::kLong);
  EXPECT_NEAR(value(run({.aux_loss = 0.01}, s)), 0.01, 1e-15);
}

TEST(MoeLosses, A1_A2_A6_GradientsAgreeWithTheJacobian) {
  for (const BalanceConfig& config :
       {BalanceConfig{.aux_loss = 0.3}, BalanceConfig{.seq_loss = 0.3},
        BalanceConfig{.global_loss = 0.3}, BalanceConfig{.z_loss = 0.3},
        BalanceConfig{.device_loss = 0.3}, BalanceConfig{.communication_loss = 0.3}}) {
    testing::expect_gradients(
        [&](const testing::Tensors& z) {
          return run(config, sums_of(z[0], {}, 2), {.top_k = kK, .groups = 4, .keep_groups = 2})
              .at(0)
              .value;
        },
        {logits(6).requires_grad_()}, 1e-7);
  }
}

// Four ranks, by hand: each sees the union's counts and its own probabilities.
TEST(MoeLosses, A1_SharesOfRanksSumToTheWhole) {
  const at::Tensor z = logits(40), valid = at::rand({40}).gt(0.4);
  const BalanceSums whole = sums_of(z, valid);
  Context context = kTraining;
  context.group_sum = [&](const at::Tensor&) {
    return at::cat({whole.counts_BE, whole.tokens_B.unsqueeze(1)}, 1);
  };
  double shares = 0, z_shares = 0;
  for (int64_t r = 0; r < 4; ++r) {
    const BalanceSums own = sums_of(z.narrow(0, 10 * r, 10), valid.narrow(0, 10 * r, 10));
    shares += value(run({.aux_loss = 0.1}, own, {.top_k = kK}, context));
    z_shares += value(run({.z_loss = 0.1}, own, {.top_k = kK}, context));
  }
  EXPECT_NEAR(shares, value(run({.aux_loss = 0.1}, whole)), 1e-12);
  EXPECT_NEAR(z_shares, value(run({.z_loss = 0.1}, whole)), 1e-12);
}

TEST(MoeLosses, A1_IsFreeOfTheOrderOfTokens) {
  const at::Tensor z = logits(50), order = at::rand({50}).argsort();
  EXPECT_NEAR(value(run({.aux_loss = 1}, sums_of(z))),
              value(run({.aux_loss = 1}, sums_of(z.index_select(0, order)))), 1e-12);
}

TEST(MoeLosses, A2_TwoSequencesAreTheMeanOfEach) {
  const at::Tensor z = logits(20);
  const double both = value(run({.seq_loss = 0.5}, sums_of(z, {}, 2)));
  const double a = value(run({.seq_loss = 0.5}, sums_of(z.narrow(0, 0, 10))));
  const double b = value(run({.seq_loss = 0.5}, sums_of(z.narrow(0, 10, 10))));
  EXPECT_NEAR(both, (a + b) / 2, 1e-12);
}

TEST(MoeLosses, A2_PaddingCountsItsOwnTokensOnly) {
  const at::Tensor z = logits(20), valid = at::arange(20).remainder(10).lt(7);
  const at::Tensor kept = at::cat({z.narrow(0, 0, 7), z.narrow(0, 10, 7)});
  EXPECT_NEAR(value(run({.seq_loss = 0.5}, sums_of(z, valid, 2))),
              value(run({.seq_loss = 0.5}, sums_of(kept, {}, 2))), 1e-12);
}

// D = 4 replicas: the mean over D (A7's factor) of the shares' gradients is the union's gradient.
TEST(MoeLosses, A3_FourReplicasHaveTheGradientOfTheUnion) {
  const at::Tensor z = logits(40).requires_grad_(), split = z.detach().clone().requires_grad_();
  const BalanceSums whole = sums_of(z);
  run({.global_loss = 0.1}, whole).at(0).value.backward();
  Context context = kTraining;
  context.all_sum = [&](const at::Tensor&) {
    return at::cat({whole.counts_BE[0], whole.tokens_B}).detach();
  };
  for (int64_t r = 0; r < 4; ++r) {
    const BalanceSums own = sums_of(split.narrow(0, 10 * r, 10));
    (run({.global_loss = 0.1}, own, {.top_k = kK}, context).at(0).value / 4.0).backward();
  }
  EXPECT_LT((z.grad() - split.grad()).abs().max().item<double>(), 1e-12);
  EXPECT_GT(z.grad().abs().max().item<double>(), 1e-6);
}

// Ranks with two sequences, one, and none of tokens meet in one sum, whose sizes are the model's.
TEST(MoeLosses, A3_A4_SumsOverAllRanksHaveOneSizeForAnyRows) {
  for (const int64_t B : {1, 2, 5}) {
    for (const int64_t tokens : {0, 10}) {
      std::vector<std::vector<int64_t>> sizes;
      Context context = kTraining;
      context.all_sum = [&](const at::Tensor& x) {
        sizes.push_back(x.sizes().vec());
        return x.clone();
      };
      run({.global_loss = 1, .batched_loss = 1, .batched_scope = LossScope::kAll},
          sums_of(logits(B * tokens), {}, B), {.top_k = kK}, context);
      EXPECT_EQ(sizes, (std::vector<std::vector<int64_t>>{{kE + 1}})) << B << ' ' << tokens;
    }
  }
}

// Two replicas, of which one has padding: a microbatch's own tokens divide its sum, as in one process.
TEST(MoeLosses, A3_A4_ReplicasWithOtherNumbersOfTokensAreMeansOfTheirOwn) {
  const at::Tensor valid = at::arange(20).lt(7);
  const BalanceSums a = sums_of(logits(20), valid), b = sums_of(logits(20));
  const at::Tensor counts = a.counts_BE[0] + b.counts_BE[0];
  Context context = kTraining;
  context.all_sum = [&](const at::Tensor&) {
    return at::cat({counts, at::full({1}, 27, at::kLong)});
  };
  for (const auto& [own, n] : {std::pair{a, 7.0}, std::pair{b, 20.0}}) {
    const at::Tensor f = counts.to(at::kDouble) / (kK * 27.0);
    const double want = kE * (f * own.probs_BE[0]).sum().item<double>() / n;
    for (const BalanceConfig& config :
         {BalanceConfig{.global_loss = 1},
          BalanceConfig{.batched_loss = 1, .batched_scope = LossScope::kAll}}) {
      EXPECT_NEAR(value(run(config, own, {.top_k = kK}, context)), want, 1e-12);
    }
  }
}

TEST(MoeLosses, A3_CountsAreTheRunningMeanOfTheStep) {
  FractionTracker tracker(kE);
  const BalanceSums a = sums_of(logits(16)), b = sums_of(logits(16));
  const BalanceConfig config{.global_loss = 1};
  moe_losses(config, a, {.top_k = kK}, kTraining, tracker);
  const auto second = moe_losses(config, b, {.top_k = kK}, kTraining, tracker);
  const at::Tensor mean = (a.counts_BE[0] + b.counts_BE[0]).to(at::kDouble) / 2;
  EXPECT_NEAR(value(second), lb_of(mean, b.probs_BE[0], 16), 1e-12);
  tracker.end_of_step();
  const auto fresh = moe_losses(config, b, {.top_k = kK}, kTraining, tracker);
  EXPECT_NEAR(value(fresh), lb_of(b.counts_BE[0], b.probs_BE[0], 16), 1e-12);
}

TEST(MoeLosses, A3_PreviousUsesTheWholeLastStep) {
  FractionTracker tracker(kE);
  const BalanceSums a = sums_of(logits(16)), b = sums_of(logits(16)), c = sums_of(logits(16));
  BalanceConfig config{.global_loss = 1};
  config.global_fractions = GlobalFractions::kPrevious;
  // Before it there is none: even fractions, whatever the microbatch.
  EXPECT_NEAR(value(moe_losses(config, a, {.top_k = kK}, kTraining, tracker)), 1, 1e-12);
  moe_losses(config, b, {.top_k = kK}, kTraining, tracker);
  tracker.end_of_step();
  const at::Tensor mean = (a.counts_BE[0] + b.counts_BE[0]).to(at::kDouble) / 2;
  const auto next = moe_losses(config, c, {.top_k = kK}, kTraining, tracker);
  EXPECT_NEAR(value(next), lb_of(mean, c.probs_BE[0], 16), 1e-6);  // kept in f32
}

TEST(MoeLosses, A4_LayersOnTwoStagesSumToTheWhole) {
  const int64_t L = 4;
  double stages[2] = {0, 0}, formula = 0;
  for (int64_t l = 0; l < L; ++l) {
    const BalanceSums s = sums_of(logits(32));
    stages[l / 2] += value(run({.batched_loss = 0.1}, s, {.top_k = kK, .moe_layers = L}));
    formula += (s.counts_BE[0].to(at::kDouble) * s.probs_BE[0] / 32.0).sum().item<double>();
  }
  formula *= kE * 0.1 / (L * 32.0 * kK);
  EXPECT_NEAR(stages[0] + stages[1], formula, 1e-12);
}

TEST(MoeLosses, A4_PerfectBalanceGivesTheWeight) {
  BalanceSums s = sums_of(logits(40));
  s.counts_BE = at::full({1, kE}, 40 * kK / kE, at::kLong);
  EXPECT_NEAR(3 * value(run({.batched_loss = 0.1}, s, {.top_k = kK, .moe_layers = 3})), 0.1, 1e-15);
}

TEST(MoeLosses, A5_SeveralAreTheSumOfEach) {
  const at::Tensor z = logits(20).requires_grad_(), w = z.detach().clone().requires_grad_();
  for (const MoeLoss& loss :
       run({.aux_loss = 0.1, .seq_loss = 0.2, .z_loss = 0.3}, sums_of(z, {}, 2))) {
    loss.value.backward({}, /*retain_graph=*/true);
  }
  for (const BalanceConfig& one : {BalanceConfig{.aux_loss = 0.1}, BalanceConfig{.seq_loss = 0.2},
                                   BalanceConfig{.z_loss = 0.3}}) {
    run(one, sums_of(w, {}, 2)).at(0).value.backward();
  }
  EXPECT_LT((z.grad() - w.grad()).abs().max().item<double>(), 1e-15);
}

TEST(MoeLosses, A6_ZeroLogitsGiveTheSquaredLogOfE) {
  const double ln_E = std::log(static_cast<double>(kE));
  EXPECT_NEAR(value(run({.z_loss = 1e-3}, sums_of(at::zeros({5, kE}, at::kDouble)))),
              1e-3 * ln_E * ln_E, 1e-15);
}

TEST(MoeLosses, A6_NeedsNoBalanceSums) {
  BalanceSums s = sums_of(logits(20));
  const double want = value(run({.z_loss = 0.1}, s));
  s.counts_BE = s.probs_BE = at::Tensor();
  EXPECT_EQ(value(run({.z_loss = 0.1}, s)), want);
  Context context = kTraining;  // two ranks with as many tokens each
  context.group_sum = [](const at::Tensor& own) { return own * 2; };
  EXPECT_NEAR(value(run({.z_loss = 0.1}, s, {.top_k = kK}, context)), want / 2, 1e-15);
  EXPECT_THROW(run({.aux_loss = 0.1}, s), Error);
}

TEST(MoeLosses, A9_AsManyGroupsAsExpertsGivesA1) {
  const BalanceSums s = sums_of(logits(30));
  const double aux = value(run({.aux_loss = 0.1}, s));
  EXPECT_NEAR(value(run({.device_loss = 0.1}, s, {.top_k = kK, .groups = kE})), aux, 1e-15);
  EXPECT_NEAR(
      value(run({.communication_loss = 0.1}, s, {.top_k = kK, .groups = kE, .keep_groups = kK})),
      aux, 1e-15);
}

TEST(MoeLosses, A9_ATokenTouchesAGroupOnce) {
  const at::Tensor ids = at::tensor({0, 1, 0, 7, -1, -1}, at::kInt).reshape({3, 2});
  EXPECT_TRUE(touched_groups(ids, 8, 4).equal(at::tensor({2, 0, 0, 1}, at::kLong)));
}

TEST(MoeLosses, E1_E15_NoTokensGiveZeroAndNoNaN) {
  for (const at::Tensor& z : {logits(0), logits(6)}) {
    const at::Tensor leaf = z.requires_grad_();
    const BalanceSums s = sums_of(leaf, at::zeros({z.size(0)}, at::kBool));
    for (const MoeLoss& loss :
         run({.aux_loss = 1, .seq_loss = 1, .global_loss = 1, .batched_loss = 1, .z_loss = 1}, s)) {
      EXPECT_EQ(loss.value.item<double>(), 0.0) << loss.name;
      loss.value.backward({}, /*retain_graph=*/true);
    }
    EXPECT_TRUE(leaf.grad().equal(at::zeros_like(leaf)));
  }
}

TEST(MoeLosses, E10_CountsBeyond2To53KeepTheirScale) {
  const int64_t N = int64_t{1} << 33;
  BalanceSums s{.counts_BE = at::full({1, kE}, N * kK / kE, at::kLong),
                .probs_BE = at::full({1, kE}, static_cast<double>(N) / kE, at::kDouble),
                .tokens_B = at::full({1}, N, at::kLong),
                .ids_TK = {},
                .lse_squares = {}};
  EXPECT_NEAR(value(run({.aux_loss = 1}, s)), 1, 1e-12);
}

TEST(MoeLosses, G7_OnlyThePassThatOwnsTheBackwardRecords) {
  const BalanceSums s = sums_of(logits(8));
  EXPECT_TRUE(run({.aux_loss = 1}, s, {.top_k = kK}, Context{}).empty());
  EXPECT_TRUE(
      run({.aux_loss = 1}, s, {.top_k = kK}, Context{.training = true, .owns_backward = false})
          .empty());
  EXPECT_TRUE(run({}, s).empty());
}

// Three layers with the same probabilities for all experts: the losses as they are computed here
// and as transformers computes its own are what value_at_balance says.
TEST(BalanceForms, A1_TheValuesAtBalanceAreThoseOfTheLossesThemselves) {
  using enum BalanceForm;
  const int64_t L = 3, N = 32;
  const LossSizes sizes = {.top_k = kK, .moe_layers = L};
  double aux = 0, batched = 0;
  at::Tensor f = at::zeros({kE}, at::kDouble), p = f.clone();
  for (int64_t l = 0; l < L; ++l) {
    const BalanceSums s = sums_of(logits(N) * 0);
    aux += value(run({.aux_loss = 0.01}, s, sizes));
    batched += value(run({.batched_loss = 0.1}, s, sizes));
    f += s.counts_BE[0].to(at::kDouble) / static_cast<double>(N * L);
    p += s.probs_BE[0] / static_cast<double>(N * L);
  }
  EXPECT_NEAR(aux, value_at_balance(kTroupe, 0.01, L, kK), 1e-12);
  EXPECT_NEAR(batched, value_at_balance(kMegaBlocks, 0.1, L, kK), 1e-12);
  EXPECT_NEAR(0.02 * kE * (f * p).sum().item<double>(), value_at_balance(kHuggingFace, 0.02, L, kK),
              1e-12);
}

TEST(BalanceForms, A1_ConversionKeepsTheValueAtBalance) {
  using enum BalanceForm;
  EXPECT_DOUBLE_EQ(convert_coefficient(0.01, kTroupe, kMegaBlocks, 40, 4), 0.4);  // w = a L
  EXPECT_DOUBLE_EQ(convert_coefficient(0.05, kMegaBlocks, kTroupe, 40, 4), 0.05 / 40);
  EXPECT_DOUBLE_EQ(convert_coefficient(0.02, kHuggingFace, kTroupe, 32, 2), 0.02 * 2 / 32);
  EXPECT_DOUBLE_EQ(convert_coefficient(0.1, kMegaBlocks, kHuggingFace, 32, 2), 0.05);  // w / k
}

}  // namespace
}  // namespace troupe
