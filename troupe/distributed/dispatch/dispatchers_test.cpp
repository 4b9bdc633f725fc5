#include "troupe/distributed/dispatch/dispatchers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/params/expert_placement.h"
#include "troupe/distributed/world/node_groups.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

DispatcherConfig named(std::string_view kind) {
  DispatcherConfig out;
  EXPECT_TRUE(out.select(kind));
  return out;
}

TEST(Dispatchers, AutoTakesTwoLevelsWhereTheRanksFillSeveralNodes) {
  const auto kind = [](const std::string& asked, int64_t ranks, int64_t node) {
    return std::string(chosen_for(named(asked), {.ranks = ranks, .node = node}).kind());
  };
  EXPECT_EQ(kind("auto", 16, 8), "two_level");
  EXPECT_EQ(kind("auto", 8, 8), "all_to_all");
  EXPECT_EQ(kind("auto", 4, 6), "all_to_all");
  EXPECT_EQ(kind("auto", 12, 8), "all_to_all");
  for (const std::string_view given : DispatcherConfig::kinds()) {
    if (given == "auto") continue;
    EXPECT_EQ(kind(std::string(given), 16, 8), given);
  }
}

TEST(Dispatchers, AskedBeforeOneIsChosenIsAnError) {
  EXPECT_THROW(why(named("auto"), {}), Error);
  EXPECT_THROW(traffic(named("auto"), {.holders = [](double n) { return n; }}), Error);
}

TEST(Dispatchers, EachSaysWhyARunTakesIt) {
  const ExpertRanks hosts{.ranks = 16, .node = 8};
  EXPECT_EQ(why(named("two_level"), hosts), "16 ranks share experts, over 2 nodes of 8");
  EXPECT_EQ(why(named("all_to_all"), hosts), "as the recipe says");
  EXPECT_EQ(why(named("all_to_all"), {.ranks = 4, .node = 8}),
            "the 4 ranks that share experts are on one host");
  EXPECT_EQ(why(named("all_to_all"), {.ranks = 4, .node = 6}),
            "the 4 ranks that share experts do not fill nodes of 6");
}

TEST(Dispatchers, SymmetricAloneNeedsOneHostAndKeepsMemoryForTransfers) {
  const TrafficShape shape{
      .ranks = 4, .top_k = 2, .exact = true, .holders = [](double) { return 1.0; }};
  for (const std::string_view kind : DispatcherConfig::kinds()) {
    EXPECT_EQ(needs_one_host(named(kind)), kind == "symmetric") << kind;
    if (kind == "auto") continue;
    EXPECT_EQ(traffic(named(kind), shape).kept_rows, kind == "symmetric" ? 3 * 4 * 2 : 0) << kind;
  }
}

// A token whose experts lie on all ranks: everything crosses, to R - 1 of R and N - 1 of N.
TEST(Dispatchers, TrafficSumsToTheRowsThatLeaveARank) {
  const auto leaving = [](const std::string& kind, TrafficRows what, bool exact) {
    const TrafficShape shape{
        .ranks = 8, .node = 4, .top_k = 16, .exact = exact, .holders = [](double groups) {
          return groups;
        }};
    double rows = 0;
    for (const Message& m : traffic(named(kind), shape).messages) {
      if (m.what == what) rows += m.rows * m.leaves;
    }
    return rows;
  };
  EXPECT_EQ(leaving("all_to_all", TrafficRows::kOut, false), 7);
  EXPECT_EQ(leaving("all_to_all", TrafficRows::kBack, true), 14);
  EXPECT_EQ(leaving("two_level", TrafficRows::kOut, false), 2 * 0.5 + 8 * 0.75);
  EXPECT_EQ(leaving("two_level", TrafficRows::kBack, true), 16 * 0.5 + 16 * 0.75);
  EXPECT_EQ(leaving("all_gather", TrafficRows::kOut, false), 8);
  EXPECT_EQ(leaving("all_gather", TrafficRows::kBack, true), 8 * 16 * 7 / 8.0);
  EXPECT_EQ(leaving("symmetric", TrafficRows::kOut, false), 7);
  EXPECT_EQ(leaving("symmetric", TrafficRows::kBack, true), 14);
}

// Nobody who adds a dispatcher forgets one of its answers.
TEST(Dispatchers, EachOfTheListIsBuiltAndNamesItself) {
  testing::in_ranks(4, [](World& world) {
    const ExpertPlacement placement = contiguous(8, 4);
    const NodeGroups groups = node_groups(world, world.all(), 2);
    for (const std::string_view kind : DispatcherConfig::kinds()) {
      if (kind == "auto") continue;
      const auto dispatcher = build(named(kind), groups, placement, {.mode = DispatchMode::kExact});
      const DispatcherInfo info = dispatcher->info();
      TROUPE_CHECK(info.held == placement.held_by(world.rank()), kind);
      const std::string mode = sends_rows(named(kind)) ? "exact" : "rows stay";
      TROUPE_CHECK(info.description.find(mode) != std::string::npos, info.description);
    }
  });
}

}  // namespace
}  // namespace troupe
