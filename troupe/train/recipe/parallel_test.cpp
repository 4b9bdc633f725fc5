#include "troupe/train/recipe/parallel.h"

#include <gtest/gtest.h>

#include "troupe/core/config/config.h"

namespace troupe {
namespace {

std::vector<std::string> idle_keys(const std::string& text, const LayoutNeeds& needs) {
  ParallelConfig given;
  read_config(parse_yaml(text, "x.yaml"), given);
  std::vector<std::string> out;
  for (const std::string& line : without_effect(given, resolved(given, needs), needs.experts)) {
    out.push_back(line.substr(0, line.find(' ')));
  }
  return out;
}

TEST(Parallel, KeysThatALayoutLeavesIdleAreTold) {
  using Keys = std::vector<std::string>;
  const LayoutNeeds needs{.world = 4, .experts = 8};
  EXPECT_EQ(idle_keys("{expert: 2, shard: zero1, dispatch: exact, dispatcher: all_gather}", needs),
            Keys());
  EXPECT_EQ(
      idle_keys("{expert: 1, shard: none, dispatch: exact, dispatcher: all_gather, "
                "wire: int8, rebalance: {every: 5}}",
                needs),
      (Keys{"parallel.rebalance", "parallel.dispatch", "parallel.dispatcher", "parallel.wire"}));
  EXPECT_EQ(idle_keys("{expert: 4, shard: zero1, prefetch: 2, reshard: false, node_ranks: 2, "
                      "dispatcher: all_to_all}",
                      {.world = 4, .experts = 8, .per_host = 4}),
            (Keys{"parallel.node_ranks", "parallel.prefetch", "parallel.reshard"}));
  EXPECT_EQ(idle_keys("{expert: 4, shard: full, prefetch: 2, reshard: false, node_ranks: 2, "
                      "dispatcher: two_level}",
                      needs),
            Keys());
  const LayoutNeeds six{.world = 4, .experts = 6};
  EXPECT_EQ(idle_keys("{expert: 4, shard: none, placement: uneven}", six), Keys());
  for (const std::string expert : {"1", "2"}) {
    EXPECT_EQ(idle_keys("{expert: " + expert + ", shard: none, placement: uneven}", six),
              (Keys{"parallel.placement"}));
  }
}

TEST(Parallel, H1_UnevenPlacementTakesAnyRanksUpToTheNumberOfExperts) {
  const auto faults = [](int64_t experts, int64_t ranks, ExpertSplit placement) {
    ParallelConfig c;
    c.expert = ranks;
    c.placement = placement;
    return layout_faults(c, {.world = ranks, .experts = experts});
  };
  for (int64_t ranks = 1; ranks <= 12; ++ranks) {
    for (int64_t experts = 1; experts <= 30; ++experts) {
      const bool divide = experts % ranks == 0 || ranks % experts == 0;
      EXPECT_EQ(faults(experts, ranks, ExpertSplit::kEven).empty(), divide);
      EXPECT_EQ(faults(experts, ranks, ExpertSplit::kUneven).empty(), divide || experts > ranks);
    }
  }
}

TEST(Parallel, TheRankWithTheMostExpertsIsWhatAllWaitFor) {
  ParallelConfig c;
  c.expert = 4;
  c.placement = ExpertSplit::kUneven;
  EXPECT_DOUBLE_EQ(most_held(c, 6), 2 * 4 / 6.0);
  EXPECT_DOUBLE_EQ(most_held(c, 8), 1);
  EXPECT_DOUBLE_EQ(most_held(c, 2), 1);  // cut by their width
  EXPECT_DOUBLE_EQ(most_held(c, 0), 1);
  c.placement = ExpertSplit::kEven;
  EXPECT_DOUBLE_EQ(most_held(c, 8), 1);
}

}  // namespace
}  // namespace troupe
