#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

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

TEST(MoeSm90Plan, CutsSumsOfGradientsWithFewTilesAlone) {
  EXPECT_EQ(choose_weight_segment(2048, 1024), kSegmentRowsSm90);  // 32 tiles of 256 x 256
  EXPECT_EQ(choose_weight_segment(2816, 3072), 0);                 // 132
  EXPECT_EQ(choose_weight_segment(2560, 3072), kSegmentRowsSm90);  // 120
  EXPECT_EQ(choose_weight_segment(64, 64), kSegmentRowsSm90);
}

// Whatever the experts' rows are, their segments are no more than what memory is held for.
TEST(MoeSm90Plan, HoldsMemoryForAllSegmentsThatThereCanBe) {
  constexpr int64_t kRows = 100;
  for (const std::vector<int64_t>& counts :
       std::vector<std::vector<int64_t>>{{},
                                         {0, 0},
                                         {100},
                                         {101},
                                         {101, 101, 101},
                                         {0, 950, 3},
                                         {200, 201, 0, 99, 100},
                                         {1, 1, 1, 1, 1, 102}}) {
    int64_t rows = 0, all = 0, held = 0;
    for (const int64_t count : counts) {
      const int64_t segments = std::max<int64_t>(1, (count + kRows - 1) / kRows);
      rows += count, all += segments, held += segments > 1 ? segments : 0;
    }
    const auto experts = static_cast<int64_t>(counts.size());
    const SegmentSlots slots = segment_slots(rows, experts, kRows);
    EXPECT_LE(all, slots.all) << rows << ' ' << experts;
    EXPECT_LE(held, slots.held) << rows << ' ' << experts;
  }
  EXPECT_EQ(segment_slots(kRows, 3, kRows).held, 0);
  EXPECT_EQ(segment_bytes({.all = 5, .held = 0}, 2048, 1024), 0);
  EXPECT_EQ(segment_bytes({.all = 5, .held = 5}, 2048, 1024), 2560 + 5 * 4 * int64_t{2048} * 1024);
}

// Mixtral's layer: the kernels' lines say what their launchers choose.
TEST(MoeSm90Plan, IsPrintedKernelByKernel) {
  const auto kernels = sm90_kernels({.width = 4096, .hidden = 14336, .experts = 8, .rows = 16384});
  EXPECT_EQ(kernels[0].name, "up");
  EXPECT_EQ(to_text(kernels[0]),
            "sums of 4096; tiles of 128 x 256, 4 slots of 64, tiles kept in step");
  EXPECT_EQ(to_text(kernels[2]),
            "sums of 4096; tiles of 128 x 256, 6 slots of 32, tiles kept in step");
  EXPECT_EQ(kernels[3].length, 28672);
  const int cycles = choose_weight_plan(16384, 8).stagger_cycles;
  EXPECT_EQ(to_text(kernels[5]),
            "sums of 2048; tiles of 128 x 256, 4 slots of 64, starts spread over " +
                std::to_string(cycles) + " cycles from 16 waves on");
  const auto trial =
      sm90_kernels({.width = 2048, .hidden = 1024, .experts = 64, .rows = 262144}, /*trial=*/true);
  EXPECT_NE(to_text(trial[4]).find("waves on, on trial: sums cut into segments of 8192"),
            std::string::npos);
  EXPECT_EQ(trial[3].segment, 0);
}

}  // namespace
}  // namespace troupe
