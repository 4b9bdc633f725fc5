#include "troupe/distributed/dispatch/local_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kE = 6, kK = 3, kD = 5;

struct Inputs {
  at::Tensor x_TD, ids_TK, scores_TK, w1, w2;
};

Inputs inputs(int64_t T, at::ScalarType type = at::kDouble) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor ids = std::get<1>(at::rand({T, kE}).sort()).narrow(1, 0, kK).to(at::kInt);
  ids.masked_fill_(at::rand({T, kK}).lt(0.2), -1);
  return {at::randn({T, kD}, at::kDouble).to(type).requires_grad_(), ids,
          at::rand({T, kK}, wide).requires_grad_(),
          at::randn({kE, 8, kD}, at::kDouble).to(type).requires_grad_(),
          at::randn({kE, kD, 4}, at::kDouble).to(type).requires_grad_()};
}

at::Tensor layer(Dispatcher& d, const Inputs& in) {
  const DispatchedRows rows =
      d.begin(in.x_TD, {.ids_TK = in.ids_TK, .scores_TK = in.scores_TK}).finish();
  const ExpertWeights w{in.w1, std::nullopt, in.w2, std::nullopt};
  return rows.combine(moe_ffn(rows.source_SD, rows.scores_SK, rows.plan, w, {}));
}

std::vector<at::Tensor> results(Dispatcher& d, const Inputs& in) {
  const std::vector<at::Tensor> leaves = {in.x_TD, in.scores_TK, in.w1, in.w2};
  for (const at::Tensor& x : leaves) x.mutable_grad().reset();
  const at::Tensor y = layer(d, in);
  (y.to(at::kDouble) * at::arange(y.numel(), at::kDouble).cos().reshape(y.sizes()))
      .sum()
      .backward();
  std::vector<at::Tensor> out = {y.detach()};
  for (const at::Tensor& x : leaves) out.push_back(x.grad().clone());
  return out;
}

TEST(LocalDispatcher, TheSourceIsXItselfAndNothingIsRecorded) {
  const auto d = local_dispatcher(kE);
  const Inputs in = inputs(7);
  const DispatchedRows rows =
      d->begin(in.x_TD, {.ids_TK = in.ids_TK, .scores_TK = in.scores_TK}).finish();
  EXPECT_TRUE(rows.source_SD.is_same(in.x_TD));
  EXPECT_TRUE(rows.scores_SK.is_same(in.scores_TK));
  EXPECT_EQ(rows.plan.expert_offset[kE].item<int64_t>(), in.ids_TK.ge(0).sum().item<int64_t>());
  EXPECT_TRUE(rows.combine(in.x_TD).is_same(in.x_TD));
  EXPECT_FALSE(d->info().host_reads);
}

TEST(LocalDispatcher, H1_VirtualRanksEqualOneRankInAllGradients) {
  const auto one = local_dispatcher(kE);
  const Inputs in = inputs(31);
  const auto want = results(*one, in);
  for (const ExpertPlacement& p :
       {contiguous(kE, 2), contiguous(kE, 3), listed(4, {{0}, {0}, {1}, {1}, {2}, {3}}),
        listed(3, {{0, 1, 2}, {0}, {1}, {1, 2}, {2}, {0}})}) {
    const auto many = virtual_ranks_dispatcher(p);
    const auto got = results(*many, in);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT((got[i] - want[i]).abs().max().item<double>(), 1e-11) << p.ranks() << ' ' << i;
    }
  }
}

// The partial sum of each rank is rounded to the model's type: what `fast` dispatch does.
TEST(LocalDispatcher, H5_VirtualRanksRoundEachRanksPart) {
  const auto one = local_dispatcher(kE), two = virtual_ranks_dispatcher(contiguous(kE, 2));
  const Inputs in = inputs(40, at::kBFloat16);
  const at::NoGradGuard no_grad;
  at::Tensor sum;
  for (const int64_t w : {0, 1}) {
    Inputs part = in;
    part.ids_TK = in.ids_TK.masked_fill(in.ids_TK.div(3, "floor").ne(w), -1);
    const at::Tensor y = layer(*one, part).to(at::kFloat);
    sum = sum.defined() ? sum + y : y;
  }
  EXPECT_TRUE(layer(*two, in).equal(sum.to(at::kBFloat16)));
}

TEST(LocalDispatcher, E1_E21_NoTokensAndARankWithoutExperts) {
  const auto d = virtual_ranks_dispatcher(listed(3, {{0}, {0}, {0}, {2}, {2}, {2}}));
  const auto got = results(*d, inputs(0));
  EXPECT_EQ(got[0].numel(), 0);
  EXPECT_TRUE(got[3].eq(0).all().item<bool>());
}

TEST(LocalDispatcher, P3_C6_SegmentsFollowTheRequest) {
  const auto d = local_dispatcher(2);
  const at::Tensor ids = at::zeros({3, 1}, at::kInt);
  const auto rows = [&](int64_t alignment, int64_t capacity) {
    return d->begin(at::zeros({3, 2}), {ids, at::rand({3, 1}), alignment, capacity}).finish().plan;
  };
  EXPECT_EQ(rows(16, 0).expert_offset[2].item<int>(), 16);
  EXPECT_EQ(rows(1, 5).expert_offset[2].item<int>(), 10);
  EXPECT_EQ(rows(1, 5).counts[0].item<int64_t>(), 3);
}

// Buffers of a forward without gradients go with its rows, and those of a step with its backward.
TEST(LocalDispatcher, WhatIsInFlightEndsWithItsHolderOrItsBackward) {
  const auto d = virtual_ranks_dispatcher(contiguous(kE, 2));
  const Inputs in = inputs(4);
  std::weak_ptr<OpenExchange> exchange;
  {
    const at::NoGradGuard no_grad;
    const DispatchedRows rows =
        d->begin(in.x_TD, {.ids_TK = in.ids_TK, .scores_TK = in.scores_TK}).finish();
    exchange = rows.exchange;
    rows.combine(rows.source_SD);
  }
  EXPECT_TRUE(exchange.expired());
  const at::Tensor y = layer(*d, in).sum();
  y.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(y.backward(), Error);  // what the second walk would send is gone
}

TEST(LocalDispatcher, RefusesSlicesAndRowsThatWereWaitedFor) {
  EXPECT_THROW(virtual_ranks_dispatcher(hidden_sharded(2, 4, 8)), Error);
  const Inputs in = inputs(4);
  InFlight flying = local_dispatcher(kE)->begin(in.x_TD, {in.ids_TK, in.scores_TK});
  std::move(flying).finish();
  EXPECT_THROW(std::move(flying).finish(), Error);  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace troupe
