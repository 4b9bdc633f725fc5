#include "troupe/distributed/dispatch/all_gather_dispatcher.h"

#include "troupe/core/check.h"
#include "troupe/distributed/world/fp8_rows_problem_test.h"
#include "troupe/distributed/world/ranks_problem_test.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using namespace ranks_problem;
using testing::in_ranks;

void compare(World& world, const Case& c, const ExpertPlacement& p, const Options& o = {}) {
  ranks_problem::compare(world, all_gather_dispatcher, c, p, o);
}

void compare_all(World& world) {
  const int64_t W = world.size();
  std::vector<int64_t> ragged(W), one(W, 0);
  for (int64_t r = 0; r < W; ++r) ragged[r] = 7 * ((r + 2) % W) + r % 2;
  one.back() = 1;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    compare(world, {.tokens = ragged, .type = type}, contiguous(8, W));
    compare(world, {.tokens = one, .type = type}, contiguous(8, W));
  }
  for (const Load load : {Load::kHotExpert, Load::kHotRank, Load::kTwice, Load::kNone}) {
    compare(world, {.tokens = ragged, .load = load}, contiguous(8, W));
  }
  compare(world, {.tokens = std::vector<int64_t>(W, 0)}, contiguous(8, W));
  compare(world, {.tokens = std::vector<int64_t>(W, 20)}, contiguous(8, W),
          {.alignment = 4, .capacity = 20});
}

TEST(AllGatherDispatcher, H5_TwoRanks) {
  in_ranks(2, compare_all);
}
TEST(AllGatherDispatcher, H5_FourRanks) {
  in_ranks(4, compare_all);
}

TEST(AllGatherDispatcher, H1_H2_AnyPlacement) {
  in_ranks(4, [](World& world) {
    const Case c{.tokens = {12, 6, 0, 18}, .experts = 6};
    compare(world, c, listed(4, {{3}, {1}, {3}, {1}, {3}, {3}}));
    const Case two{.tokens = {7, 0, 12, 3}, .type = at::kDouble, .experts = 2, .choices = 2};
    const ExpertPlacement slices = hidden_sharded(2, 4, kF);
    const Inputs all = draw(two), own = part_of(all, two, slices, world.rank());
    const Results want = part_of(run(*local_dispatcher(2), all), two, slices, world.rank());
    for (const DispatchMode mode : {DispatchMode::kFast, DispatchMode::kExact}) {
      const auto d = all_gather_dispatcher(world.all(), slices, mode);
      expect_equal(run(*d, own), want, to_text(mode), 1e-12);
    }
    // Replicas: outputs and what goes back to the tokens are those of all-to-all.
    const ExpertPlacement replicas = listed(4, {{0, 1, 2}, {0}, {1}, {1, 3}, {2}, {0}});
    const Inputs mine = part_of(draw(c), c, replicas, world.rank());
    for (const DispatchMode mode : {DispatchMode::kFast, DispatchMode::kExact}) {
      expect_equal(run(*all_gather_dispatcher(world.all(), replicas, mode), mine),
                   run(*all_to_all_dispatcher(world.all(), replicas, mode), mine), to_text(mode));
    }
  });
}

TEST(AllGatherDispatcher, C7_RowsWithoutRoomAreCounted) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {20, 30}, .load = Load::kHotRank};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    for (const DispatchMode mode : {DispatchMode::kFast, DispatchMode::kExact}) {
      const Results want = run(*all_to_all_dispatcher(world.all(), p, mode), own, {.budget = 25});
      const Results got = run(*all_gather_dispatcher(world.all(), p, mode), own, {.budget = 25});
      EXPECT_TRUE(got.lost.equal(want.lost));
      expect_equal(got, want, to_text(mode));
    }
  });
}

TEST(AllGatherDispatcher, Q4_RowsInInt8AreThoseOfAllToAll) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const auto made = [&](Maker make) {
      return make(world.all(), p, DispatchMode::kFast, WireType::kInt8);
    };
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Case c{.tokens = {7, 0, 21, 15}, .type = type, .width = 40};
      const Inputs own = part_of(draw(c), c, p, world.rank());
      expect_equal(run(*made(all_gather_dispatcher), own), run(*made(all_to_all_dispatcher), own),
                   text_of(c, p));
    }
    EXPECT_THROW(all_gather_dispatcher(world.all(), p, DispatchMode::kExact, WireType::kInt8),
                 Error);
  });
}

TEST(AllGatherDispatcher, Q8_33_RowsInFp8AreRoundedOnceWhereTheyAreSent) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const auto made = [&](WireType wire) {
      return all_gather_dispatcher(world.all(), p, DispatchMode::kFast, wire);
    };
    compare_fp8_all(world, made, p);
  });
}

TEST(AllGatherDispatcher, RefusesAPlacementOnOtherRanks) {
  const auto alone = std::make_shared<ProcessGroup>();
  EXPECT_THROW(all_gather_dispatcher(alone, contiguous(8, 2), DispatchMode::kFast), Error);
  EXPECT_EQ(
      all_gather_dispatcher(alone, contiguous(8, 1), DispatchMode::kExact)->info().description,
      "all-gather, exact: 8 experts on rank 0");
}

}  // namespace
}  // namespace troupe
