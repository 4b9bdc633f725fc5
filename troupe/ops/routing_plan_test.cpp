#include "troupe/ops/routing_plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sort.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

class RoutingPlanOpTest : public testing::DeviceTest {};

// ATen's stable sort of the slots by expert is the order of rows.
TEST_P(RoutingPlanOpTest, P1_RowsAreSlotsSortedByExpert) {
  for (int64_t T : {0, 1, 7, 300}) {
    const at::Tensor ids = at::randint(0, 5, {T, 3}, options(at::kInt));
    const Plan plan = routing_plan(ids, {.experts = 5});
    const at::Tensor order = std::get<1>(ids.flatten().sort(/*stable=*/true, 0, false));
    EXPECT_TRUE(plan.row_slot.equal(order.to(at::kInt))) << T;
    EXPECT_TRUE(plan.row_src.equal(order.floor_divide(3).to(at::kInt))) << T;
    EXPECT_EQ(plan.counts.sum().item<int64_t>(), 3 * T);
    EXPECT_EQ(plan.expert_offset[5].item<int64_t>(), 3 * T);
  }
}

TEST_P(RoutingPlanOpTest, AgreesWithThePlainLoops) {
  const at::Tensor ids = testing::random_ids(65, 2, 6, 3);
  const Plan want = testing::plan_of(ids, 6);
  const Plan got = routing_plan(ids.to(device()), {.experts = 6});
  EXPECT_TRUE(got.expert_offset.cpu().equal(want.expert_offset));
  EXPECT_TRUE(got.slot_row.cpu().equal(want.slot_row));
  EXPECT_TRUE(got.counts.cpu().equal(want.counts));
}

TEST_P(RoutingPlanOpTest, C6_CapacityFixesTheSizes) {
  const at::Tensor ids = at::full({9, 1}, 2, options(at::kInt));
  const Plan plan = routing_plan(ids, {.experts = 4, .alignment = 2, .capacity = 3});
  EXPECT_EQ(plan.row_src.size(0), 16);
  EXPECT_EQ(plan.counts[2].item<int64_t>(), 3);
  EXPECT_EQ(plan.slot_row.ge(0).sum().item<int64_t>(), 3);
}

TEST_P(RoutingPlanOpTest, E16_IdsOfAnyStrides) {
  const at::Tensor ids = at::randint(0, 5, {3, 40}, options(at::kInt)).t();
  const Plan got = routing_plan(ids, {.experts = 5});
  const Plan want = routing_plan(ids.contiguous(), {.experts = 5});
  EXPECT_TRUE(got.row_slot.equal(want.row_slot));
}
TROUPE_ON_DEVICES(RoutingPlanOpTest);

TEST_P(RoutingPlanOpTest, TilesCoverEachSegmentFromItsStart) {
  const at::Tensor ids = testing::random_ids(50, 3, 7, 5).to(device().device());
  const auto [plan, tiles] = routing_plan_tiles(ids, 8, {.experts = 7});
  const Plan plain = routing_plan(ids, {.experts = 7});
  EXPECT_TRUE(plan.row_slot.equal(plain.row_slot));
  const at::Tensor offset = plan.expert_offset.cpu(), list = tiles.list.cpu();
  int64_t at_tile = 0;
  for (int64_t e = 0; e < 7; ++e) {
    const auto end = offset[e + 1].item<int32_t>();
    for (auto row = offset[e].item<int32_t>(); row < end; row += 8, ++at_tile) {
      EXPECT_EQ(list[at_tile][0].item<int32_t>(), e);
      EXPECT_EQ(list[at_tile][1].item<int32_t>(), row);
    }
  }
  EXPECT_EQ(tiles.count.item<int32_t>(), at_tile);
  TROUPE_EXPECT_REFUSAL(routing_plan_tiles(ids, 0, {.experts = 7}), "height must be above 0");
}

TEST(RoutingPlanOp, TracesWithoutData) {
  const at::Tensor ids = at::empty({10, 2}, at::TensorOptions().dtype(at::kInt).device(at::kMeta));
  const Plan plan = routing_plan(ids, {.experts = 4, .alignment = 8});
  EXPECT_EQ(plan.row_src.size(0), 48);
  EXPECT_TRUE(plan.row_src.is_meta());
}

TEST(RoutingPlanOp, TakesIdsOf64Bits) {
  at::Tensor ids = at::randint(0, 4, {5, 2}, at::kLong);
  ids[1][0] = int64_t{1} << 32;  // 0 in its low 32 bits, and no expert
  ids[2][1] = -(int64_t{1} << 32);
  const at::Tensor narrow = ids.clamp(-1, 4).to(at::kInt);
  const Plan wide_plan = routing_plan(ids, {.experts = 4});
  const Plan plan = routing_plan(narrow, {.experts = 4});
  EXPECT_TRUE(wide_plan.slot_row.equal(plan.slot_row));
  EXPECT_EQ(wide_plan.slot_row[1][0].item<int32_t>(), -1);
  EXPECT_EQ(wide_plan.counts.sum().item<int64_t>(), 8);
}

TEST(RoutingPlanOp, RefusesIdsThatAreNoIntegersOrNotAMatrix) {
  const at::Tensor ids = at::randint(0, 4, {5, 2}, at::kFloat);
  EXPECT_NE(testing::refusal([&] { routing_plan(ids, {.experts = 4}); }).find("routing_plan: ids"),
            std::string::npos);
  EXPECT_NE(testing::refusal([&] {
              routing_plan(ids.to(at::kInt).flatten(), {.experts = 4});
            }).find("routing_plan: ids"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe
