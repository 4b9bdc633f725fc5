#include "troupe/kernels/routing_plan/routing_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

constexpr int32_t kPoison = -77;  // No output may hold it.

enum class Ids { kRandom, kAllToOne, kMasked, kEqualInToken };

struct Problem {
  explicit Problem(const PlanShape& s, Ids kind = Ids::kRandom)
      : shape(s),
        ids(s.tokens * s.choices + 1),
        slot_row(ids.size()),
        expert_offset(s.experts + 1),
        row_src(row_bound(s) + 1),
        row_slot(row_bound(s) + 1),
        tile_list(2 * tile_bound(s) + 1),
        tile_count(1),
        counts(s.experts),
        overflow(1),
        workspace(workspace_bytes(RoutingPlan{.shape = s})) {
    fill(kind);
    for (auto* b : {&slot_row, &expert_offset, &row_src, &row_slot, &tile_list, &tile_count}) {
      std::fill_n(b->data(), b->size(), kPoison);
    }
    std::fill_n(counts.data(), counts.size(), int64_t{kPoison});
    std::fill_n(workspace.data(), workspace.size(), uint8_t{0xa5});
    overflow[0] = kPoison;
  }

  void fill(Ids kind) {
    std::mt19937 rng(11);
    std::uniform_int_distribution<int32_t> expert(0, static_cast<int32_t>(shape.experts) - 1);
    std::bernoulli_distribution masked(0.3);
    for (int64_t s = 0; s < shape.tokens * shape.choices; ++s) {
      ids[s] = kind == Ids::kAllToOne ? static_cast<int32_t>(shape.experts) / 2 : expert(rng);
      if (kind == Ids::kEqualInToken) ids[s] = ids[s / shape.choices * shape.choices];
      if (kind == Ids::kMasked && masked(rng)) ids[s] = -1;
    }
  }

  RoutingPlan args() {
    return {.shape = shape,
            .ids = ids.data(),
            .counts = counts.data(),
            .expert_offset = expert_offset.data(),
            .row_src = row_src.data(),
            .row_slot = row_slot.data(),
            .slot_row = slot_row.data(),
            .tile_list = tile_list.data(),
            .tile_count = tile_count.data(),
            .overflow = overflow.data(),
            .workspace = workspace.data()};
  }

  PlanShape shape;
  Buffer<int32_t> ids, slot_row, expert_offset, row_src, row_slot, tile_list, tile_count;
  Buffer<int64_t> counts, overflow;
  Buffer<uint8_t> workspace;
};

void run(Backend backend, const RoutingPlan& args) {
  testing::run(backend, args, routing_plan_cpu, TROUPE_CUDA_PATH(routing_plan_cuda));
}

template <class T>
void expect_same(Buffer<T>& got, Buffer<T>& want, const char* what, size_t size) {
  for (size_t i = 0; i < size; ++i) ASSERT_EQ(got[i], want[i]) << what << " at " << i;
}

void expect_equal(Problem& got, Problem& want) {
  expect_same(got.expert_offset, want.expert_offset, "expert_offset", want.expert_offset.size());
  expect_same(got.counts, want.counts, "counts", want.counts.size());
  expect_same(got.slot_row, want.slot_row, "slot_row", want.slot_row.size());
  expect_same(got.row_slot, want.row_slot, "row_slot", want.row_slot.size());  // Guards included.
  expect_same(got.row_src, want.row_src, "row_src", want.row_src.size());
  expect_same(got.overflow, want.overflow, "overflow", 1);
  expect_same(got.tile_count, want.tile_count, "tile_count", 1);
  const auto tiles = static_cast<size_t>(std::max(0, want.tile_count[0]));
  expect_same(got.tile_list, want.tile_list, "tile_list", 2 * tiles);
  EXPECT_EQ(got.tile_list[got.tile_list.size() - 1], kPoison) << "wrote past the tile list";
}

struct Case {
  Backend backend;
  PlanShape shape;
  Ids ids;
};

class RoutingPlanTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(RoutingPlanTest, AgreesWithTheReferenceBitForBit) {
  Problem want(GetParam().shape, GetParam().ids), got(GetParam().shape, GetParam().ids);
  routing_plan_ref(want.args());
  for (int repeat = 0; repeat < 3; ++repeat) {
    run(GetParam().backend, got.args());
    expect_equal(got, want);
  }
}

// Needs no reference: the two maps are each other's inverse, and rows rise by (expert, slot).
TEST_P(RoutingPlanTest, P1_RowsAreOrderedByExpertThenSlot) {
  Problem p(GetParam().shape, GetParam().ids);
  run(GetParam().backend, p.args());
  const PlanShape& s = p.shape;
  int64_t placed = 0;
  for (int64_t e = 0; e < s.experts; ++e) {
    ASSERT_LE(p.expert_offset[e], p.expert_offset[e + 1]);
    const int32_t begin = p.expert_offset[e];
    const auto real = static_cast<int32_t>(begin + p.counts[e]);
    for (int32_t r = begin; r < real; ++r) {
      ASSERT_EQ(p.ids[p.row_slot[r]], e) << "row " << r;
      ASSERT_EQ(p.row_src[r], p.row_slot[r] / s.choices) << "row " << r;
      ASSERT_EQ(p.slot_row[p.row_slot[r]], r);
      ASSERT_TRUE(r == begin || p.row_slot[r - 1] < p.row_slot[r]) << "row " << r;
    }
    for (int32_t r = real; r < p.expert_offset[e + 1]; ++r) ASSERT_EQ(p.row_slot[r], -1);
    placed += p.counts[e];
  }
  int64_t with_row = 0, with_expert = 0;
  for (int64_t slot = 0; slot < s.tokens * s.choices; ++slot) {
    with_row += p.slot_row[slot] >= 0;
    with_expert += p.ids[slot] >= 0;
  }
  EXPECT_EQ(with_row, placed);
  EXPECT_EQ(with_row + p.overflow[0], with_expert);
}

TEST_P(RoutingPlanTest, P3_SegmentsAreAlignedAndTilesCoverThem) {
  Problem p(GetParam().shape, GetParam().ids);
  run(GetParam().backend, p.args());
  const PlanShape& s = p.shape;
  int64_t tile = 0;
  for (int64_t e = 0; e < s.experts; ++e) {
    const int64_t begin = p.expert_offset[e], end = p.expert_offset[e + 1];
    EXPECT_EQ((end - begin) % s.alignment, 0) << "expert " << e;
    if (s.capacity == 0) {
      EXPECT_LT(end - begin - p.counts[e], s.alignment) << "expert " << e;
    }
    for (int64_t row = begin; s.tile_height > 0 && row < end; row += s.tile_height, ++tile) {
      ASSERT_EQ(p.tile_list[2 * tile], e);
      ASSERT_EQ(p.tile_list[2 * tile + 1], row);
    }
  }
  EXPECT_EQ(p.tile_count[0], s.tile_height > 0 ? tile : kPoison);
}

constexpr PlanShape kShapes[] = {
    {.tokens = 0, .choices = 2, .experts = 5, .alignment = 16, .tile_height = 128},
    {.tokens = 1, .choices = 1, .experts = 1},
    {.tokens = 1, .choices = 3, .experts = 3, .tile_height = 64},
    {.tokens = 127, .choices = 2, .experts = 3, .alignment = 32, .tile_height = 128},
    {.tokens = 1025, .choices = 8, .experts = 60, .alignment = 128, .tile_height = 128},
    {.tokens = 5000, .choices = 8, .experts = 128, .tile_height = 128},
    {.tokens = 2049, .choices = 1, .experts = 1024, .alignment = 16, .tile_height = 64},
    {.tokens = 613, .choices = 16, .experts = 1000, .tile_height = 128},
    {.tokens = 3001, .choices = 4, .experts = 1025, .alignment = 16, .tile_height = 128},
    {.tokens = 4099, .choices = 2, .experts = 70000, .tile_height = 64},
    {.tokens = 100, .choices = 2, .experts = 7, .capacity = 11, .tile_height = 8},
    {.tokens = 1000, .choices = 4, .experts = 64, .alignment = 16, .capacity = 70},
    {.tokens = 0, .choices = 4, .experts = 4, .capacity = 3},
    {.tokens = 50, .choices = 2, .experts = 7, .alignment = 8, .capacity = 1},
    {.tokens = 900, .choices = 2, .experts = 1500, .capacity = 2, .tile_height = 2},
    {.tokens = 300000, .choices = 2, .experts = 6, .tile_height = 128},  // Several tiles a chunk.
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (const PlanShape& s : kShapes) cases.push_back({b, s, Ids::kRandom});
    for (Ids ids : {Ids::kAllToOne, Ids::kMasked, Ids::kEqualInToken}) {
      for (int i : {3, 4, 8, 11}) cases.push_back({b, kShapes[i], ids});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, s, ids] = info.param;
  const char* kinds[] = {"random", "all_to_one", "masked", "equal_in_token"};
  return std::string(name(backend)) + "_t" + std::to_string(s.tokens) + "_k" +
         std::to_string(s.choices) + "_e" + std::to_string(s.experts) + "_a" +
         std::to_string(s.alignment) + "_c" + std::to_string(s.capacity) + "_" +
         kinds[static_cast<int>(ids)];
}
INSTANTIATE_TEST_SUITE_P(All, RoutingPlanTest, ::testing::ValuesIn(all_cases()), case_name);

class RoutingPlanCase : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(RoutingPlanCase, P1_HandExample) {
  Problem p({.tokens = 4, .choices = 2, .experts = 3, .tile_height = 2});
  const int32_t ids[] = {2, 0, 0, -1, 2, 1, 2, 0};
  std::copy(std::begin(ids), std::end(ids), p.ids.data());
  run(GetParam(), p.args());
  const std::vector<int32_t> offset{0, 3, 4, 7}, slot{1, 2, 7, 5, 0, 4, 6, -1},
      src{0, 1, 3, 2, 0, 2, 3, -1}, row{4, 0, 1, -1, 5, 3, 6, 2},
      tiles{0, 0, 0, 2, 1, 3, 2, 4, 2, 6};
  EXPECT_EQ(std::vector<int32_t>(p.expert_offset.data(), p.expert_offset.data() + 4), offset);
  EXPECT_EQ(std::vector<int32_t>(p.row_slot.data(), p.row_slot.data() + 8), slot);
  EXPECT_EQ(std::vector<int32_t>(p.row_src.data(), p.row_src.data() + 8), src);
  EXPECT_EQ(std::vector<int32_t>(p.slot_row.data(), p.slot_row.data() + 8), row);
  EXPECT_EQ(std::vector<int32_t>(p.tile_list.data(), p.tile_list.data() + 10), tiles);
  EXPECT_EQ(p.tile_count[0], 5);
}

TEST_P(RoutingPlanCase, C6_CapacityFixesTheLayout) {
  Problem p({.tokens = 5, .choices = 1, .experts = 3, .capacity = 2});
  const int32_t ids[] = {1, 1, 0, 1, -1};
  std::copy(std::begin(ids), std::end(ids), p.ids.data());
  run(GetParam(), p.args());
  const std::vector<int32_t> offset{0, 2, 4, 6}, slot{2, -1, 0, 1, -1, -1}, row{2, 3, 0, -1, -1};
  EXPECT_EQ(std::vector<int32_t>(p.expert_offset.data(), p.expert_offset.data() + 4), offset);
  EXPECT_EQ(std::vector<int32_t>(p.row_slot.data(), p.row_slot.data() + 6), slot);
  EXPECT_EQ(std::vector<int32_t>(p.slot_row.data(), p.slot_row.data() + 5), row);
  EXPECT_EQ(p.overflow[0], 1);
}

TEST_P(RoutingPlanCase, IdsOutOfRangeGetNoRow) {
  Problem p({.tokens = 3, .choices = 2, .experts = 4});
  const int32_t ids[] = {4, 3, -2, 1 << 30, -(1 << 30), 3};
  std::copy(std::begin(ids), std::end(ids), p.ids.data());
  run(GetParam(), p.args());
  EXPECT_EQ(p.expert_offset[4], 2);
  const std::vector<int32_t> row{-1, 0, -1, -1, -1, 1};
  EXPECT_EQ(std::vector<int32_t>(p.slot_row.data(), p.slot_row.data() + 6), row);
}

std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return name(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, RoutingPlanCase,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         backend_name);

TEST(RoutingPlan, E9_BoundsAre64BitAndRefuseWhatDoesNotFit) {
  EXPECT_EQ(row_bound({.tokens = 131072, .choices = 8, .experts = 128, .alignment = 128}),
            131072 * 8 + 128 * 127 - 128 * 127 % 128);
  EXPECT_EQ(row_bound({.tokens = 2, .choices = 1, .experts = 100, .alignment = 128}), 256);
  EXPECT_EQ(row_bound({.tokens = 10, .choices = 1, .experts = 3, .alignment = 8, .capacity = 9}),
            48);
  EXPECT_EQ(tile_bound({.tokens = 65, .choices = 2, .experts = 4, .tile_height = 128}), 6);
  const int64_t half = int64_t{1} << 30;
  EXPECT_EQ(row_bound({.tokens = half, .choices = 1, .experts = 8}), half);
  EXPECT_THROW(row_bound({.tokens = half, .choices = 2, .experts = 8}), Error);
  EXPECT_THROW(row_bound({.tokens = int64_t{1} << 62, .choices = 8, .experts = 8}), Error);
  EXPECT_THROW(row_bound({.tokens = 8, .choices = 1, .experts = half, .capacity = 4}), Error);
  EXPECT_THROW(row_bound({.tokens = half, .choices = 1, .experts = 1 << 20, .alignment = 1 << 12}),
               Error);
}

TEST(RoutingPlan, E6_RefusesSizesWithoutMeaning) {
  EXPECT_THROW(row_bound({.tokens = -1, .choices = 1, .experts = 1}), Error);
  EXPECT_THROW(row_bound({.tokens = 1, .choices = 0, .experts = 1}), Error);
  EXPECT_THROW(row_bound({.tokens = 1, .choices = 1, .experts = 0}), Error);
  EXPECT_THROW(row_bound({.tokens = 1, .choices = 1, .experts = 1, .alignment = 0}), Error);
  EXPECT_THROW(row_bound({.tokens = 1, .choices = 1, .experts = 1, .capacity = -1}), Error);
}

TEST(RoutingPlan, RefusesMissingOutputs) {
  Problem p({.tokens = 2, .choices = 1, .experts = 2, .tile_height = 8});
  for (auto field : {&RoutingPlan::expert_offset, &RoutingPlan::row_src, &RoutingPlan::slot_row,
                     &RoutingPlan::tile_list}) {
    RoutingPlan args = p.args();
    args.*field = nullptr;
    EXPECT_THROW(routing_plan_cpu(args, serial), Error);
  }
}

}  // namespace
}  // namespace troupe
