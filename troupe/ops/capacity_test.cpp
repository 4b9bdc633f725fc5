#include "troupe/ops/capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>

#include "troupe/ops/combine.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/routing_plan.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

using testing::Tensors;

class CapacityOpTest : public testing::DeviceTest {};

TEST_P(CapacityOpTest, C4_PoliciesKeepDifferentSlots) {
  const at::Tensor ids = at::zeros({4, 1}, options(at::kInt));
  const at::Tensor weights = at::arange(4, options()).reshape({4, 1});
  const auto kept = [&](DropPolicy policy) {
    const KeptSlots k = drop_over_capacity(ids, weights, std::nullopt,
                                           {.experts = 2, .rule = {.factor = 1}, .policy = policy});
    EXPECT_EQ(k.dropped.item<int64_t>(), 2);
    return k.ids_TK.flatten().cpu();
  };
  EXPECT_TRUE(kept(DropPolicy::kProbs).equal(at::arange(4, at::kInt).ge(2).to(at::kInt) - 1));
  EXPECT_TRUE(kept(DropPolicy::kPosition).equal(at::arange(4, at::kInt).lt(2).to(at::kInt) - 1));
}

TEST_P(CapacityOpTest, C2_CountsValidTokens) {
  const at::Tensor ids = at::zeros({8, 1}, options(at::kInt));
  const at::Tensor weights = at::ones({8, 1}, options());
  const at::Tensor valid = at::arange(8, options()).lt(4);
  const KeptSlots k =
      drop_over_capacity(ids, weights, valid, {.experts = 2, .rule = {.factor = 1}});
  EXPECT_EQ(k.dropped.item<int64_t>(), 6);
}

// The whole layer without its experts: with pad the rows are C an expert and the sums the same
// bits.
TEST_P(CapacityOpTest, C6_PaddingChangesNoBit) {
  const at::Tensor ids = testing::random_ids(60, 2, 6, 3).to(device());
  const at::Tensor weights = at::rand({60, 2}, options()), x = at::rand({60, 24}, options());
  const CapacityRule rule{.factor = 0.75};
  const KeptSlots k = drop_over_capacity(ids, weights, std::nullopt, {.experts = 6, .rule = rule});
  ASSERT_GT(k.dropped.item<int64_t>(), 0);
  const int64_t C = capacity(rule, 60, 2, 6);
  const Plan packed = routing_plan(k.ids_TK, {.experts = 6});
  const Plan padded = routing_plan(k.ids_TK, {.experts = 6, .capacity = C});
  EXPECT_EQ(padded.row_src.size(0), 6 * C);
  EXPECT_TRUE(padded.counts.equal(packed.counts));
  const at::Tensor rows = permute(x, padded);
  EXPECT_EQ(rows.masked_fill(padded.row_src.ge(0).unsqueeze(1), 0).abs().max().item<double>(), 0);
  EXPECT_TRUE(
      combine(rows, padded, k.weights_TK).equal(combine(permute(x, packed), packed, k.weights_TK)));
}

TEST_P(CapacityOpTest, C5_DroppedSlotsGiveExactlyZero) {
  const at::Tensor ids = at::zeros({6, 1}, options(at::kInt));
  const at::Tensor weights = (at::rand({6, 1}, options()) + 0.1).requires_grad_();
  const KeptSlots k =
      drop_over_capacity(ids, weights, std::nullopt, {.experts = 3, .rule = {.factor = 1}});
  const Plan plan = routing_plan(k.ids_TK, {.experts = 3});
  const at::Tensor out = combine(permute(at::ones({6, 8}, options()), plan), plan, k.weights_TK);
  out.sum().backward();
  const at::Tensor dropped = k.ids_TK.lt(0);
  EXPECT_EQ(out.masked_select(dropped).abs().max().item<double>(), 0);
  EXPECT_EQ(weights.grad().masked_select(dropped).abs().max().item<double>(), 0);
  EXPECT_EQ(weights.grad().masked_select(dropped.logical_not()).min().item<double>(), 8);
}

TEST_P(CapacityOpTest, E1_NoTokens) {
  const KeptSlots k =
      drop_over_capacity(at::zeros({0, 2}, options(at::kInt)), at::zeros({0, 2}, options()),
                         std::nullopt, {.experts = 3, .rule = {.factor = 1}});
  EXPECT_EQ(k.ids_TK.size(0), 0);
  EXPECT_EQ(k.dropped.item<int64_t>(), 0);
}
TROUPE_ON_DEVICES(CapacityOpTest);

TEST(CapacityOp, AgreesWithTheNumericJacobian) {
  const at::Tensor ids = testing::random_ids(9, 2, 4, 3);
  for (bool renormalize : {false, true}) {
    const auto w = (at::rand({9, 2}, at::kDouble) + 0.1).requires_grad_();
    testing::expect_gradients(
        [&](const Tensors& in) {
          return drop_over_capacity(
                     ids, in[0], std::nullopt,
                     {.experts = 4, .rule = {.factor = 0.5}, .renormalize = renormalize})
              .weights_TK;
        },
        {w});
  }
}

TEST(CapacityOp, RefusalsNameTheArgument) {
  const at::Tensor ids = testing::random_ids(9, 2, 4, 3), w = at::rand({9, 2});
  const auto says = [](const at::Tensor& a, const at::Tensor& b, double factor, const char* what) {
    const DropOptions options{.experts = 4, .rule = {.factor = factor}};
    return testing::refusal([&] { drop_over_capacity(a, b, std::nullopt, options); }).find(what) !=
           std::string::npos;
  };
  EXPECT_TRUE(says(ids.to(at::kLong), w, 1, "drop_over_capacity: ids"));
  EXPECT_TRUE(says(ids, at::rand({9, 3}), 1, "drop_over_capacity: weights"));
  EXPECT_TRUE(says(ids, w.to(at::kBFloat16), 1, "weights"));
  EXPECT_TRUE(says(ids, w, -1, "factor"));
}

}  // namespace
}  // namespace troupe
