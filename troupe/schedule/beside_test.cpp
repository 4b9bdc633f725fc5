// Backwards that run beside forwards of another microbatch (OV8, OV9).
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/schedule/schedule_texts_test.h"
#include "troupe/schedule/schedules.h"
#include "troupe/schedule/verify.h"

namespace troupe {
namespace {

// `v` stages on each of `ranks`, a block a stage, with the embedding and the head at the ends.
StepWork pipeline(int ranks, int v, int microbatches) {
  StepWork work{.chunks = ranks * v + 2, .microbatches = microbatches, .ranks = ranks};
  for (int c = 0; c < work.chunks; ++c) {
    work.stages.push_back(std::clamp(c - 1, 0, ranks * v - 1));
  }
  for (int s = 0; s < ranks * v; ++s) work.stage_ranks.push_back(s % ranks);
  work.beside = true;
  return work;
}

TEST(Beside, OV9_OfOneRankEachBackwardHasTheNextMicrobatch) {
  StepWork work{.chunks = 3, .microbatches = 3, .beside = true};
  EXPECT_EQ(text(Accumulate{}, work),
            "0: F0.0 F1.0 F2.0 B2.0& F0.1 B1.0& F1.1 B0.0& F2.1 B2.1& F0.2 B1.1& F1.2 B0.1& F2.2 "
            "B2.2 B1.2 B0.2 U\n");
  work.recomputed = {1};
  work.replicas = 2;
  EXPECT_EQ(text(DataParallel{.sharded = false}, work),
            "0: F0.0 L1.0 F2.0 B2.0& F0.1 F1.0 B1.0& L1.1 B0.0& F2.1 B2.1& F0.2 F1.1 B1.1& L1.2 "
            "B0.1& F2.2 B2.2 A2 F1.2 B1.2 A1 B0.2 A0 U\n");
  EXPECT_EQ(text(Accumulate{}, {.chunks = 1, .beside = true}), "0: F0.0 B0.0 U\n");
  EXPECT_EQ(text(FullShard{}, {.chunks = 3, .microbatches = 2, .replicas = 4, .beside = true}),
            "0: G0 G1 F0.0 X0 G2 F1.0 X1 G0 F2.0 G1 B2.0& F0.1 A2.0 B1.0& F1.1 X1 A1.0 B0.0& F2.1 "
            "X0 A0.0 G1 B2.1 X2 A2.1 G0 B1.1 X1 A1.1 B0.1 X0 A0.1 U\n");
}

TEST(Beside, OV9_OfTwoStagesSendsStandBehindBoth) {
  StepWork work{.chunks = 2, .microbatches = 2, .ranks = 2};
  work.stages = work.stage_ranks = {0, 1};
  work.beside = true;
  EXPECT_EQ(text(Accumulate{}, work),
            "0: F0.0 S1.0>1 R1.0<1 F0.1 S1.1>1 R1.1<1 B0.0 B0.1 U\n"
            "1: R1.0<0 R1.1<0 F1.0 B1.0& F1.1 S1.0>0 B1.1 S1.1>0 U\n");
}

// Every list is sound, at each depth of the channels, and is the one without pairs in another
// order: the same computations and transfers.
TEST(Beside, OV9_ListsOfAllShapesAreSound) {
  int pairs = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int v : {1, 2, 3}) {
      for (const int microbatches : {1, 2, 3, 5, 8, 16}) {
        for (const bool again : {false, true}) {
          StepWork work = pipeline(ranks, v, microbatches);
          work.replicas = 2;
          if (again) work.recomputed = {1, ranks * v};
          if (again && ranks * v == 1) work.recomputed = {1};
          for (work.depth = 1; work.depth <= 3; ++work.depth) {
            for (const bool sharded : {false, true}) {
              for (const int prefetch : {0, 1, 2}) {
                const FullShard full{.prefetch = prefetch, .reshard = sharded};
                EXPECT_EQ(schedule_faults(full.build(work), work), std::vector<std::string>{});
              }
              Schedule beside = DataParallel{.sharded = sharded}.build(work);
              EXPECT_EQ(schedule_faults(beside, work), std::vector<std::string>{})
                  << ranks << " ranks, " << v << " stages each, " << microbatches
                  << " microbatches, depth " << work.depth;
              StepWork alone = work;
              alone.beside = false;
              Schedule after = DataParallel{.sharded = sharded}.build(alone);
              for (int r = 0; r < ranks; ++r) {
                for (Action& a : beside[r]) pairs += std::exchange(a.beside, false) ? 1 : 0;
                std::ranges::sort(beside[r]);
                std::ranges::sort(after[r]);
              }
              EXPECT_EQ(beside, after);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(pairs, 10000);
}

TEST(Beside, AFaultyPairIsTold) {
  const StepWork work{.chunks = 1, .microbatches = 2};
  const auto faults = [&](const std::string& list) {
    return schedule_faults(parse_schedule("0: " + list + "\n"), work);
  };
  EXPECT_EQ(faults("F0.0 B0.0& F0.1 B0.1 U"), std::vector<std::string>{});
  EXPECT_EQ(faults("F0.0 F0.1& B0.0 B0.1 U"),
            (std::vector<std::string>{
                "rank 0, position 1 (F0.1&): a backward alone runs beside a forward"}));
  EXPECT_EQ(faults("F0.0 F0.1 B0.0& B0.1 U"),
            (std::vector<std::string>{
                "rank 0, position 2 (B0.0&): no forward stands behind it, to run beside it"}));
  EXPECT_EQ(faults("F0.0 F0.1 B0.0 B0.1&"),
            (std::vector<std::string>{
                "rank 0, position 3 (B0.1&): no forward stands behind it, to run beside it",
                "rank 0: chunk 0 is never updated"}));
}

TEST(Beside, OrdersWithLateWeightsRefuse) {
  StepWork work = pipeline(2, 1, 4);
  work.order = PipelineOrder::kZb1p;
  EXPECT_THROW(Accumulate{}.build(work), Error);
}

}  // namespace
}  // namespace troupe
