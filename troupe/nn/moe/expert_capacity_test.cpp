#include "troupe/nn/moe/expert_capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/moe/routers/select.h"
#include "troupe/nn/moe/virtual_group_test.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

const Context kTraining{.training = true};

RouterOutput routed_of(int64_t T, int64_t E, int64_t K, const Tokens& tokens = {}) {
  return select(at::randn({T, E}, at::kDouble), tokens, {.top_k = K});
}

// C4 by plain loops.
std::vector<bool> kept_slots(const RouterOutput& r, int64_t C, DropPolicy policy) {
  const at::Tensor ids = r.ids_TK.contiguous(), w = r.weights_TK.contiguous();
  const auto* e = ids.const_data_ptr<int32_t>();
  const auto* p = w.const_data_ptr<double>();
  std::vector<bool> kept(static_cast<size_t>(ids.numel()));
  for (int32_t expert = 0; expert < r.counts_E.size(0); ++expert) {
    std::vector<int64_t> slots;
    for (int64_t s = 0; s < ids.numel(); ++s) {
      if (e[s] == expert) slots.push_back(s);
    }
    if (policy == DropPolicy::kProbs) {
      std::stable_sort(slots.begin(), slots.end(),
                       [&](int64_t a, int64_t b) { return p[a] > p[b]; });
    }
    for (size_t i = 0; i < slots.size() && i < static_cast<size_t>(C); ++i) kept[slots[i]] = true;
  }
  return kept;
}

TEST(Capacity, C2_TheFormula) {
  const auto C = [](double phi, int64_t T, int64_t E, int64_t K) {
    return capacity({.factor = phi}, T, K, E);
  };
  EXPECT_EQ(C(1, 8, 4, 2), 4);
  EXPECT_EQ(C(1.25, 8, 4, 2), 5);
  EXPECT_EQ(C(0.5, 8, 4, 2), 2);
  EXPECT_EQ(C(1.1, 100, 10, 1), 11);
  EXPECT_EQ(C(1e9, 100, 10, 1), 100);  // C3: more than there are
  EXPECT_EQ(C(0, 100, 10, 1), 100);
  EXPECT_EQ(C(1, 0, 10, 1), 0);
  EXPECT_EQ(capacity({.factor = 0.01, .minimum = 3}, 100, 1, 10), 3);
}

TEST(Capacity, C4_KeepsExactlyTheRightSlots) {
  for (const DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
    const RouterOutput r = routed_of(50, 6, 2);
    const CapacityConfig c{.factor = 0.8, .policy = policy};
    const std::vector<bool> want = kept_slots(r, capacity({.factor = c.factor}, 50, 2, 6), policy);
    for (int run = 0; run < 10; ++run) {
      const Kept kept = keep_within(c, r, {}, kTraining, 1);
      for (int64_t s = 0; s < 100; ++s) {
        const bool is = kept.routed.ids_TK[s / 2][s % 2].item<int>() >= 0;
        ASSERT_EQ(is, want[static_cast<size_t>(s)]) << s;
      }
      EXPECT_EQ(kept.dropped.item<int64_t>(), std::count(want.begin(), want.end(), false));
    }
  }
}

TEST(Capacity, C4_TiesGoToTheLowerToken) {
  RouterOutput r = routed_of(6, 1, 1);
  r.weights_TK = at::full({6, 1}, 0.5, at::kDouble);
  const Kept kept = keep_within({.factor = 0.5}, r, {}, kTraining, 1);
  EXPECT_TRUE(kept.routed.ids_TK.select(1, 0).equal(at::tensor({0, 0, 0, -1, -1, -1}, at::kInt)));
}

TEST(Capacity, C5_DroppedSlotsAreZeroWithZeroGradientAndOthersStay) {
  RouterOutput r = routed_of(40, 4, 2);
  r.weights_TK = r.weights_TK.detach().requires_grad_();
  const Kept kept = keep_within({.factor = 0.5}, r, {}, kTraining, 1);
  const at::Tensor dropped = kept.routed.ids_TK.lt(0);
  EXPECT_TRUE(kept.routed.scores_TK.masked_select(dropped).eq(0).all().item<bool>());
  EXPECT_TRUE(
      kept.routed.scores_TK.masked_fill(dropped, 0).equal(r.weights_TK.masked_fill(dropped, 0)));
  kept.routed.scores_TK.sum().backward();
  EXPECT_TRUE(r.weights_TK.grad().equal(dropped.logical_not().to(at::kDouble)));
}

TEST(Capacity, C5_RenormalizeGivesTheTokenItsWholeWeightAgain) {
  RouterOutput r = routed_of(30, 4, 3);
  const CapacityConfig c{.factor = 0.6, .renormalize = true};
  const Kept kept = keep_within(c, r, {}, kTraining, 1);
  const at::Tensor sum = kept.routed.scores_TK.sum(1), want = r.weights_TK.sum(1);
  const at::Tensor some = kept.routed.ids_TK.ge(0).any(1);
  EXPECT_LT((sum - want).abs().masked_fill(some.logical_not(), 0).max().item<double>(), 1e-12);
  testing::expect_gradients(
      [&](const testing::Tensors& in) {
        RouterOutput with = r;
        with.weights_TK = in[0];
        return keep_within(c, with, {}, kTraining, 1).routed.scores_TK;
      },
      {r.weights_TK.detach().clone().requires_grad_()}, 1e-7);
}

TEST(Capacity, C2_CountsValidTokensOnly) {
  const at::Tensor valid = at::tensor({1, 1, 1, 1, 0, 0, 0, 0}, at::kInt).to(at::kBool);
  RouterOutput r = routed_of(8, 1, 1, {.valid_T = valid});
  const Kept kept = keep_within({.factor = 0.5}, r, {.valid_T = valid}, kTraining, 1);
  EXPECT_EQ(kept.routed.ids_TK.ge(0).sum().item<int64_t>(), 2);
  EXPECT_EQ(kept.dropped.item<int64_t>(), 2);
}

// Three ranks of 20, 0 and 30 tokens keep what one rank with all of them keeps, also the gradient.
TEST(Capacity, C2_C4_TheGroupKeepsWhatOneRankWouldKeep) {
  const at::Tensor valid = at::rand({50}).gt(0.2), z = at::randn({50, 4}, at::kDouble);
  const int64_t first[] = {0, 20, 20, 50};
  for (const CapacityConfig& base : {CapacityConfig{.factor = 0.7},
                                     CapacityConfig{.factor = 0.7, .policy = DropPolicy::kPosition},
                                     CapacityConfig{.factor = 0.7, .renormalize = true}}) {
    const auto keep = [&](int64_t begin, int64_t n, const Context& context, RoutingScope scope) {
      CapacityConfig c = base;
      c.scope = scope;
      const Tokens tokens{.valid_T = valid.narrow(0, begin, n)};
      RouterOutput r = select(z.narrow(0, begin, n), tokens, {.top_k = 2});
      r.weights_TK = r.weights_TK.detach().requires_grad_();
      const Kept kept = keep_within(c, r, tokens, context, 1);
      (kept.routed.scores_TK * at::arange(2 * n, at::kDouble).add(2 * begin).cos().reshape({n, 2}))
          .sum()
          .backward();
      return std::tuple(kept, r.weights_TK.grad());
    };
    const auto whole = keep(0, 50, kTraining, RoutingScope::kRank);
    const Kept& want = std::get<0>(whole);
    const at::Tensor& want_grad = std::get<1>(whole);
    int64_t dropped = 0;
    run_group(3, [&](VirtualRank& rank) {
      const int64_t begin = first[rank.index()], n = first[rank.index() + 1] - begin;
      Context context = kTraining;
      context.group_rows = rank.rows();
      const auto [kept, grad] = keep(begin, n, context, RoutingScope::kGroup);
      EXPECT_TRUE(kept.routed.ids_TK.equal(want.routed.ids_TK.narrow(0, begin, n)));
      EXPECT_TRUE(kept.routed.scores_TK.equal(want.routed.scores_TK.narrow(0, begin, n)));
      EXPECT_TRUE(grad.equal(want_grad.narrow(0, begin, n)));
      const at::Tensor all = rank.sum()(kept.dropped);
      if (rank.index() == 0) dropped = all.item<int64_t>();
    });
    EXPECT_EQ(dropped, want.dropped.item<int64_t>());
    EXPECT_GT(dropped, 10);
  }
}

TEST(Capacity, C2_C6_AGroupsCapacityMayBeAllOfARanksTokens) {
  run_group(2, [](VirtualRank& rank) {
    const int64_t T = rank.index() == 0 ? 4 : 60;
    Context context = kTraining;
    context.group_rows = rank.rows();
    const CapacityConfig c{.factor = 1, .scope = RoutingScope::kGroup, .pad = true};
    const Kept kept = keep_within(c, routed_of(T, 4, 2), {}, context, 1);
    EXPECT_EQ(kept.routed.capacity, std::min<int64_t>(T, 32));  // 64 tokens, 2 choices, 4 experts
  });
}

TEST(Capacity, C1_C8_OffByDefaultAndInEvaluation) {
  const RouterOutput r = routed_of(20, 4, 2);
  EXPECT_TRUE(keep_within({}, r, {}, kTraining, 1).routed.ids_TK.is_same(r.ids_TK));
  EXPECT_TRUE(keep_within({.factor = 0.1}, r, {}, {}, 1).routed.ids_TK.is_same(r.ids_TK));
  const CapacityConfig asked{.factor = 0.1, .in_evaluation = true};
  EXPECT_GT(keep_within(asked, r, {}, {}, 1).dropped.item<int64_t>(), 0);
}

TEST(Capacity, C6_PadAsksForExactlyCRows) {
  const Kept kept = keep_within({.factor = 1, .pad = true}, routed_of(20, 4, 2), {}, kTraining, 1);
  EXPECT_EQ(kept.routed.capacity, 10);
}

TEST(Capacity, E1_NoTokens) {
  const Kept kept = keep_within({.factor = 1}, routed_of(0, 4, 2), {}, kTraining, 1);
  EXPECT_EQ(kept.dropped.item<int64_t>(), 0);
}

}  // namespace
}  // namespace troupe
