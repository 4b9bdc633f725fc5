#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(MoeSm90Plan, KeepsLongSumsInStepAndSpreadsShortOnes) {
  EXPECT_TRUE(choose_rows_plan(14336).in_step);
  EXPECT_EQ(choose_rows_plan(14336).stagger_cycles, 0);
  EXPECT_FALSE(choose_rows_plan(2048).in_step);
  EXPECT_GT(choose_rows_plan(2048).stagger_cycles, choose_rows_plan(256).stagger_cycles);
  EXPECT_GT(choose_rows_plan(64).stagger_cycles, 0);
}

TEST(MoeSm90Plan, NeverWaitsLong) {
  // One expert with all rows, and no row at all.
  EXPECT_LE(choose_weight_plan(int64_t{1} << 31, 1).stagger_cycles, 100'000);
  EXPECT_GT(choose_weight_plan(0, 8).stagger_cycles, 0);
}

}  // namespace
}  // namespace troupe
