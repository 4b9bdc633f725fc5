#include "troupe/train/parallel.h"

#include <gtest/gtest.h>

#include "troupe/core/config.h"

namespace troupe {
namespace {

std::vector<std::string> idle_keys(const std::string& text, const LayoutNeeds& needs) {
  ParallelConfig given;
  read_config(parse_yaml(text, "x.yaml"), given);
  std::vector<std::string> out;
  for (const std::string& line : without_effect(given, resolved(given, needs))) {
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
}

}  // namespace
}  // namespace troupe
