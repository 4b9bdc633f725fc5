#include "troupe/train/observe/health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace troupe {
namespace {

LayerLoad load(std::vector<double> counts, double dropped = 0) {
  return {.layer = 7, .counts = std::move(counts), .dropped = dropped};
}

TEST(MoeHealth, MeasuresAreTheirFormulas) {
  const LayerLoad x = load({4, 0, 2, 2}, 1);
  EXPECT_DOUBLE_EQ(x.max_over_mean(), 2);
  EXPECT_DOUBLE_EQ(x.min_over_mean(), 0);
  EXPECT_DOUBLE_EQ(x.median_over_mean(), 1);
  EXPECT_DOUBLE_EQ(load({5, 1, 3}).min_over_mean(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(load({5, 1, 9}).median_over_mean(), 1);
  EXPECT_DOUBLE_EQ(load({8, 1, 1, 2}).median_over_mean(), 0.5);
  EXPECT_EQ(load({0, 0}).median_over_mean(), 0);
  EXPECT_DOUBLE_EQ(x.cv(), std::sqrt(2.0) / 2);
  EXPECT_DOUBLE_EQ(x.dropped_fraction(), 0.125);
  EXPECT_EQ(x.dead(), 1);
  EXPECT_EQ(load({0, 0}).max_over_mean(), 0);
}

constexpr const char* kNotYet = "moe: not judged yet: that takes 100 steps";

TEST(MoeHealth, BalancedLayersAreHealthyOnceThatIsJudged) {
  MoeHealth health({});
  for (int64_t step = 10; step <= 300; step += 10) {
    EXPECT_EQ(health.add(step, 10, {load({5, 6, 7, 6})}), step == 10    ? kNotYet
                                                          : step == 100 ? "moe: healthy"
                                                                        : "");
  }
}

// Of a run's first minutes: the load of a layer is above and below its limit from line to line.
TEST(MoeHealth, AVerdictDoesNotTakeTurnsWithItsOpposite) {
  MoeHealth health({});
  const LayerLoad over = load({50, 5, 5, 5}), even = load({5, 6, 7, 6});
  std::vector<std::string> said;
  const auto add = [&](int64_t step, const LayerLoad& x) {
    if (const std::string line = health.add(step, 10, {x}); !line.empty()) said.push_back(line);
  };
  for (int64_t step = 10; step <= 500; step += 10) add(step, step % 20 == 0 ? over : even);
  EXPECT_EQ(said, std::vector<std::string>{kNotYet});
  for (int64_t step = 510; step <= 590; step += 10) add(step, even);
  EXPECT_EQ(said.size(), 1u);
  add(600, even);  // 100 steps after the last one above the limit
  EXPECT_EQ(said, (std::vector<std::string>{kNotYet, "moe: healthy"}));
  for (int64_t step = 610; step <= 700; step += 10) add(step, step % 20 == 0 ? over : even);
  EXPECT_EQ(said.size(), 2u);
  for (int64_t step = 710; step <= 1000; step += 10) add(step, over);
  ASSERT_EQ(said.size(), 3u);
  EXPECT_TRUE(said.back().starts_with("moe: layer 7: load max/mean 3.1 (> 3.0) for 100 steps"));
}

TEST(MoeHealth, AFaultIsSaidOnceAndAnotherOneBesideIt) {
  MoeHealth health({});
  const LayerLoad some = load({5, 5}, 1);
  LayerLoad other = some;
  other.layer = 8;
  const std::string of_7 = "layer 7: dropped 10.0% (> 5.0%) (raise or drop model.moe.capacity)";
  EXPECT_EQ(health.add(10, 10, {some}), "moe: " + of_7);
  EXPECT_EQ(health.add(20, 10, {load({5, 5}, 2)}), "");
  EXPECT_EQ(health.add(30, 10, {load({5, 5})}), "");  // too short to be healthy
  EXPECT_EQ(health.add(40, 10, {some}), "");
  EXPECT_EQ(
      health.add(50, 10, {some, other}),
      "moe: " + of_7 + "; layer 8: dropped 10.0% (> 5.0%) (raise or drop model.moe.capacity)");
  EXPECT_EQ(health.add(149, 99, {load({5, 5})}), "");
  EXPECT_EQ(health.add(150, 1, {load({5, 5})}), "moe: healthy");
  EXPECT_EQ(health.add(160, 10, {some}), "moe: " + of_7);
}

TEST(MoeHealth, DeadExpertsAreCountedFromTheirFirstStep) {
  MoeHealth health({});
  EXPECT_EQ(health.add(40, 40, {load({0, 5, 5, 5})}), kNotYet);
  EXPECT_EQ(health.add(60, 20, {load({0, 5, 5, 5})}),
            "moe: layer 7: 1 of 4 experts dead for 60 steps (raise model.moe.router.balance, or "
            "lower the learning rate)");
  EXPECT_EQ(health.add(160, 100, {load({1, 5, 5, 5})}), "moe: healthy");
}

TEST(MoeHealth, OverloadCountsFromItsFirstStep) {
  HealthConfig config;
  config.dead = 1;
  config.load = 2;
  MoeHealth strict(config);
  EXPECT_EQ(strict.add(50, 50, {load({9, 1, 1, 1})}), kNotYet);
  EXPECT_EQ(
      strict.add(100, 50, {load({9, 1, 1, 1})}),
      "moe: layer 7: load max/mean 3.0 (> 2.0) for 100 steps (raise model.moe.router.balance)");
  EXPECT_EQ(strict.add(110, 10, {load({1, 1, 1, 1})}), "");
  EXPECT_EQ(strict.add(200, 90, {load({1, 1, 1, 1})}), "moe: healthy");
}

TEST(MoeHealth, DropsAndForcedRoutingAreSaid) {
  MoeHealth health({});
  LayerLoad x = load({5, 5}, 1);
  EXPECT_EQ(health.add(1, 1, {x}),
            "moe: layer 7: dropped 10.0% (> 5.0%) (raise or drop model.moe.capacity)");
  x.forced = true;
  x.dropped = 0;
  EXPECT_EQ(health.add(101, 100, {x}), "moe: healthy FORCED ROUTING");
}

TEST(MoeHealth, R6_Q2_ShrunkenScoresAndCutScalesAreSaid) {
  MoeHealth health({});
  LayerLoad x = load({5, 5});
  x.score_sum = 0.5;
  EXPECT_EQ(health.add(1, 1, {x}), kNotYet);
  x.score_sum = 1e-5;
  EXPECT_EQ(health.add(2, 1, {x}),
            "moe: layer 7: a token's chosen scores sum to 1e-05 (< 0.001) (lower the learning rate "
            "of the router)");
  x.score_sum.reset();
  x.saturated = 4;
  EXPECT_EQ(
      health.add(3, 1, {x}),
      "moe: layer 7: 4 groups of saved activations are beyond what 8 or 4 bits can hold (drop "
      "model.moe.quantize)");
}

}  // namespace
}  // namespace troupe
