#include "troupe/train/observe/health.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(MoeHealth, BalancedLayersAreHealthy) {
  MoeHealth health({});
  for (int64_t step = 10; step <= 300; step += 10) {
    EXPECT_EQ(health.add(step, 10, {load({5, 6, 7, 6})}), "moe: healthy");
  }
}

TEST(MoeHealth, DeadExpertsAreNamedAfterTheWindow) {
  MoeHealth health({});
  EXPECT_EQ(health.add(20, 20, {load({5, 5, 5, 5})}), "moe: healthy");
  // What was said is taken back as soon as a limit is passed.
  EXPECT_EQ(health.add(40, 20, {load({0, 0, 50000, 0})}),
            "moe: not judged yet: load max/mean over "
            "3.0 (judged after 100 steps), experts without tokens (judged after 50 steps)");
  EXPECT_EQ(health.add(45, 5, {load({5, 5, 5, 5})}),
            "moe: not judged yet: experts without tokens (judged after 50 steps)");
}

TEST(MoeHealth, DeadExpertsAreCountedFromTheirFirstStep) {
  MoeHealth health({});
  EXPECT_EQ(health.add(40, 40, {load({0, 5, 5, 5})}),
            "moe: not judged yet: experts without tokens (judged after 50 steps)");
  EXPECT_EQ(health.add(60, 20, {load({0, 5, 5, 5})}),
            "moe: layer 7: 1 of 4 experts dead for 60 steps (raise model.moe.router.balance, or "
            "lower the learning rate)");
  EXPECT_EQ(health.add(160, 100, {load({1, 5, 5, 5})}), "moe: healthy");
}

TEST(MoeHealth, OverloadCountsFromItsFirstStep) {
  HealthConfig config;
  config.dead = 1;
  MoeHealth health(config);
  EXPECT_EQ(health.add(50, 50, {load({9, 1, 1, 1})}), "moe: healthy");
  config.load = 2;
  MoeHealth strict(config);
  EXPECT_EQ(strict.add(50, 50, {load({9, 1, 1, 1})}),
            "moe: not judged yet: load max/mean over 2.0 (judged after 100 steps)");
  EXPECT_EQ(
      strict.add(100, 50, {load({9, 1, 1, 1})}),
      "moe: layer 7: load max/mean 3.0 (> 2.0) for 100 steps (raise model.moe.router.balance)");
  EXPECT_EQ(strict.add(110, 10, {load({1, 1, 1, 1})}), "moe: healthy");
}

TEST(MoeHealth, DropsAndForcedRoutingAreSaid) {
  MoeHealth health({});
  LayerLoad x = load({5, 5}, 1);
  EXPECT_EQ(health.add(1, 1, {x}),
            "moe: layer 7: dropped 10.0% (> 5.0%) (raise or drop model.moe.capacity)");
  x.forced = true;
  x.dropped = 0;
  EXPECT_EQ(health.add(2, 1, {x}), "moe: healthy FORCED ROUTING");
}

TEST(MoeHealth, R6_Q2_ShrunkenScoresAndCutScalesAreSaid) {
  MoeHealth health({});
  LayerLoad x = load({5, 5});
  x.score_sum = 0.5;
  EXPECT_EQ(health.add(1, 1, {x}), "moe: healthy");
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
