#include "troupe/train/observe/stragglers.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

// Three ranks; the last one's forward takes `factor` times the others'.
std::vector<OwnSeconds> ranks_with(double factor) {
  const OwnSeconds usual = {0.01, 0.2, 0.3, 0.02, 0.05};
  std::vector<OwnSeconds> out(3, usual);
  out[2][1] *= factor;
  return out;
}

TEST(Stragglers, F88_OneThatIsSlowTwiceIsNamedWithItsPhase) {
  Stragglers all;
  EXPECT_FALSE(all.judge(ranks_with(4), 10, 2));  // once may be chance
  EXPECT_TRUE(all.judge(ranks_with(4), 10, 2));
  ASSERT_TRUE(all.slow());
  EXPECT_EQ(all.slow()->rank, 2);
  EXPECT_EQ(all.slow()->phase, "forward");
  EXPECT_NEAR(all.slow()->factor, 1.18 / 0.58, 1e-9);
  EXPECT_NEAR(all.slow()->seconds, 0.08, 1e-9);
  EXPECT_NEAR(all.slow()->median, 0.02, 1e-9);
  EXPECT_FALSE(all.judge(ranks_with(4), 10, 2));  // reported already
  EXPECT_TRUE(all.judge(ranks_with(1), 10, 2));   // over
  EXPECT_FALSE(all.slow());
}

TEST(Stragglers, F88_ShortWindowsAndSmallDifferencesNameNobody) {
  Stragglers all;
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(all.judge(ranks_with(1.5), 10, 2));  // 1.17 times the whole
    EXPECT_FALSE(Stragglers().judge(ranks_with(9), 4, 2));
    EXPECT_FALSE(Stragglers().judge(ranks_with(9), 10, 0.5));
  }
  // 4 times as long at what is a hundredth of the time.
  const std::vector<OwnSeconds> idle = {{0, 0.01, 0, 0, 0}, {0, 0.04, 0, 0, 0}};
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(all.judge(idle, 10, 2));
  EXPECT_FALSE(all.slow());
}

TEST(Stragglers, F88_LinesAreAddedUpToAWindow) {
  Stragglers all;
  int warnings = 0;
  for (int line = 0; line < 20; ++line) warnings += all.judge(ranks_with(4), 1, 0.2);
  EXPECT_EQ(warnings, 1);
}

TEST(Stragglers, F88_OfTwoRanksTheOtherIsTheMeasure) {
  Stragglers all;
  const std::vector<OwnSeconds> two = {{0, 0.2, 0.2, 0, 0}, {0, 0.2, 1.2, 0, 0}};
  all.judge(two, 5, 1.5);
  EXPECT_TRUE(all.judge(two, 5, 1.5));
  EXPECT_EQ(all.slow()->rank, 1);
  EXPECT_EQ(all.slow()->phase, "backward");
}

TEST(Stragglers, AddsUpWhatARankDidItself) {
  Stragglers own;
  StepSeconds step;
  step.forward = 9;  // with its waiting
  step.own = {.forward = 1, .backward = 2, .reduce = 3, .update = 4};
  own.add(step, 0.5);
  own.add(step, 0.5);
  EXPECT_EQ(own.take(), (OwnSeconds{1, 2, 4, 6, 8}));
  EXPECT_EQ(own.take(), OwnSeconds{});
}

TEST(Stragglers, F88_RanksOfAPipelineAreComparedWithTheirStage) {
  // The second stage has the head and twice the work; its second rank is slower than its first.
  const OwnSeconds block = {0, 0.1, 0.1, 0, 0}, head = {0, 0.5, 0.5, 0, 0};
  const OwnSeconds slow = {0, 0.5, 2, 0, 0};
  const std::vector<std::vector<int64_t>> stages = {{0, 1}, {2, 3}};
  Stragglers even, uneven;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(even.judge({block, block, head, head}, 10, 2, stages));
    uneven.judge({block, block, head, slow}, 10, 3, stages);
  }
  EXPECT_FALSE(even.slow());
  ASSERT_TRUE(uneven.slow());
  EXPECT_EQ(uneven.slow()->rank, 3);
  EXPECT_EQ(uneven.slow()->phase, "backward");
  EXPECT_DOUBLE_EQ(uneven.slow()->factor, 2.5);
}

}  // namespace
}  // namespace troupe
