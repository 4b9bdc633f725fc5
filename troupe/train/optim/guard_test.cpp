#include "troupe/train/optim/guard.h"

#include <gtest/gtest.h>

#include <cmath>

namespace troupe {
namespace {

TEST(LossScale, F120_HalvesAfterTheHysteresisAndDoublesAfterTheWindow) {
  LossScaleConfig config;
  config.window = 3;
  LossScaleState s = start_of(config);
  EXPECT_EQ(s.scale, 0x1p32);
  update(s, config, true);
  EXPECT_EQ(s.scale, 0x1p32);  // the first is forgiven
  update(s, config, true);
  EXPECT_EQ(s.scale, 0x1p31);
  update(s, config, true);
  EXPECT_EQ(s.scale, 0x1p30);
  for (int i = 0; i < 2; ++i) update(s, config, false);
  EXPECT_EQ(s.scale, 0x1p30);
  update(s, config, false);
  EXPECT_EQ(s.scale, 0x1p31);
  update(s, config, true);
  EXPECT_EQ(s.scale, 0x1p31);  // forgiven again
}

TEST(Spike, F112_OneBadBatchIsFlaggedAndNotLearnedFrom) {
  SpikeState state;
  const SpikeConfig config;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(judge(state, config, 3 + 0.01 * std::sin(i), 1 + 0.01 * std::cos(i)), "") << i;
  }
  const SpikeState before = state;
  EXPECT_EQ(judge(state, config, 8, 1).substr(0, 9), "loss 8 is");
  EXPECT_EQ(judge(state, config, 3, 5).substr(0, 18), "gradient norm 5 is");
  EXPECT_EQ(state.losses, before.losses);
  EXPECT_EQ(state.losses.size(), 128u);
}

TEST(Spike, SaysNothingBeforeHalfAWindow) {
  SpikeState state;
  for (int i = 0; i < 60; ++i) EXPECT_EQ(judge(state, {}, i % 2 == 0 ? 3 : 100, 1), "");
}

TEST(Spike, AVerdictIsThatOfTheLimits) {
  SpikeState state;
  const SpikeConfig config{.sigmas = 3, .window = 8};
  EXPECT_EQ(limits_of(state, config).loss, std::numeric_limits<double>::infinity());
  for (int i = 0; i < 8; ++i) judge(state, config, i % 2 == 0 ? 2 : 4, 1);
  const SpikeLimits limits = limits_of(state, config);
  EXPECT_EQ(limits.loss, 3 + 3 * 1);
  EXPECT_EQ(limits.norm, std::numeric_limits<double>::infinity());  // all norms were equal
  SpikeState at = state, above = state;
  EXPECT_EQ(judge(at, config, limits.loss, 1), "");
  EXPECT_EQ(judge(above, config, std::nextafter(limits.loss, 10), 1).substr(0, 9), "loss 6 is");
}

}  // namespace
}  // namespace troupe
