// The schedules of pipelines: stages, orders and transfers under each way to share parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/schedule/compute_order.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/schedule/schedule_texts_test.h"
#include "troupe/schedule/schedules.h"
#include "troupe/schedule/verify.h"

namespace troupe {
namespace {

using Faults = ScheduleFaults;

// `each` chunks a stage, `virtual_stages` stages a rank.
StepWork pipeline(int ranks, int virtual_stages, int each, int microbatches) {
  const int stages = ranks * virtual_stages;
  StepWork out{.chunks = stages * each, .microbatches = microbatches, .ranks = ranks};
  for (int c = 0; c < out.chunks; ++c) out.stages.push_back(c / each);
  for (int s = 0; s < stages; ++s) out.stage_ranks.push_back(s % ranks);
  return out;
}

TEST(Pipeline, OneForwardOneBackwardIsTheGoldenText) {
  EXPECT_EQ(text(Accumulate{}, pipeline(2, 1, 1, 3)),
            "0: F0.0 S1.0>1 R1.0<1 F0.1 S1.1>1 B0.0 R1.1<1 F0.2 S1.2>1 R1.2<1 B0.1 B0.2 U\n"
            "1: R1.0<0 F1.0 R1.1<0 B1.0 S1.0>0 F1.1 R1.2<0 B1.1 S1.1>0 F1.2 B1.2 S1.2>0 U\n");
}

TEST(Pipeline, GpipeIsTheGoldenText) {
  StepWork work = pipeline(2, 1, 2, 2);
  work.order = PipelineOrder::kGpipe;
  work.recomputed = {1};
  work.replicas = 2;
  EXPECT_EQ(
      text(DataParallel{}, work),
      "0: F0.0 L1.0 S2.0>1 F0.1 L1.1 S2.1>1 R2.0<1 F1.0 B1.0 B0.0 R2.1<1 F1.1 B1.1 A1 B0.1 A0 "
      "U G0 G1\n"
      "1: R2.0<0 F2.0 R2.1<0 F3.0 F2.1 F3.1 B3.0 B2.0 S2.0>0 B3.1 A3 B2.1 S2.1>0 A2 U G2 G3\n");
  work.training = false;
  EXPECT_EQ(text(DataParallel{}, work),
            "0: L0.0 L1.0 S2.0>1 L0.1 L1.1 S2.1>1\n"
            "1: R2.0<0 L2.0 R2.1<0 L3.0 L2.1 L3.1\n");
}

TEST(Pipeline, InterleavedIsTheGoldenText) {
  EXPECT_EQ(text(Accumulate{}, pipeline(2, 2, 1, 2)),
            "0: F0.0 S1.0>1 R2.0<1 F0.1 S1.1>1 R2.1<1 F2.0 S3.0>1 R3.0<1 F2.1 S3.1>1 R3.1<1 B2.0 "
            "S2.0>1 R1.0<1 B2.1 S2.1>1 R1.1<1 B0.0 B0.1 U\n"
            "1: R1.0<0 R1.1<0 F1.0 S2.0>0 R3.0<0 F1.1 S2.1>0 F3.0 R3.1<0 B3.0 S3.0>0 F3.1 R2.0<0 "
            "B3.1 S3.1>0 R2.1<0 B1.0 S1.0>0 B1.1 S1.1>0 U\n");
}

// Rank 1 ends the V's way down: it pairs from the start. Rank 0 makes W of the first gradients at
// once, and the last W while it waits.
TEST(Pipeline, DualPipeVIsTheGoldenText) {
  StepWork work = pipeline(2, 2, 1, 4);
  work.stage_ranks = {0, 1, 1, 0};
  work.order = PipelineOrder::kDualPipeV;
  EXPECT_EQ(
      text(Accumulate{}, work),
      "0: F0.0 S1.0>1 F0.1 S1.1>1 R3.0<1 F0.2 S1.2>1 F3.0 I3.0 S3.0>1 R3.1<1 W3.0 F3.1 F0.3 S1.3>1 "
      "R3.2<1 B3.1 S3.1>1 R1.0<1 F3.2 B0.0 R3.3<1 B3.2 S3.2>1 R1.1<1 F3.3 B0.1 R1.2<1 B3.3 S3.3>1 "
      "I0.2 R1.3<1 W0.2 I0.3 W0.3 U\n"
      "1: R1.0<0 F1.0 R1.1<0 F2.0 S3.0>0 F1.1 R1.2<0 F2.1 S3.1>0 R3.0<0 F1.2 B2.0 F2.2 S3.2>0 "
      "R1.3<0 B1.0 S1.0>0 R3.1<0 F1.3 B2.1 F2.3 S3.3>0 R3.2<0 B1.1 S1.1>0 B2.2 R3.3<0 B1.2 S1.2>0 "
      "I2.3 I1.3 S1.3>0 W2.3 W1.3 U\n");
}

// The output table is the embedding's. Both ends reduce it together when both are done.
TEST(Pipeline, ATableOfTwoRanksIsReducedOnceBehindBoth) {
  StepWork work = pipeline(2, 1, 2, 2);
  work.tied = {{0, 3}};
  EXPECT_EQ(text(Accumulate{}, work),
            "0: F0.0 F1.0 S2.0>1 F0.1 R2.0<1 F1.1 S2.1>1 B1.0 R2.1<1 B0.0 B1.1 B0.1 A0 U\n"
            "1: R2.0<0 F2.0 F3.0 B3.0 R2.1<0 B2.0 S2.0>0 F2.1 F3.1 B3.1 B2.1 S2.1>0 A0 U\n");
  work.replicas = 2;
  EXPECT_EQ(text(FullShard{.reshard = false, .reduce_each = false}, work),
            "0: G0 G1 F0.0 F1.0 S2.0>1 F0.1 R2.0<1 F1.1 S2.1>1 B1.0 R2.1<1 B0.0 B1.1 X1 A1 B0.1 X0 "
            "A0 U\n"
            "1: G2 G0 R2.0<0 F2.0 F3.0 B3.0 R2.1<0 B2.0 S2.0>0 F2.1 F3.1 B3.1 X0 B2.1 S2.1>0 X2 A2 "
            "A0 U\n");
}

TEST(Pipeline, VerifyKnowsATableOfTwoRanks) {
  StepWork work = pipeline(2, 1, 1, 1);
  work.tied = {{0, 1}};
  const auto faults = [&](std::string_view lists) {
    return schedule_faults(parse_schedule(lists), work);
  };
  EXPECT_EQ(faults("0: F0.0 S1.0>1 R1.0<1 B0.0 A0 U\n1: R1.0<0 F1.0 B1.0 S1.0>0 A0 U\n"), Faults{});
  EXPECT_TRUE(names(faults("0: F0.0 S1.0>1 R1.0<1 B0.0 A0 U\n1: R1.0<0 F1.0 B1.0 S1.0>0 U\n"),
                    "chunk 0 runs on 2 ranks and is not reduced on each"));
  EXPECT_TRUE(names(faults("0: F0.0 S1.0>1 R1.0<1 B0.0 A0 U\n1: R1.0<0 F1.0 B1.0 S1.0>0 A1 U\n"),
                    "is named by chunk 0, its tie"));
  EXPECT_TRUE(names(faults("0: F0.0 S1.0>1 A0 R1.0<1 B0.0 U\n1: R1.0<0 F1.0 B1.0 S1.0>0 A0 U\n"),
                    "reduced before its last backward"));
}

TEST(Pipeline, VerifyKnowsStages) {
  const StepWork work = pipeline(2, 1, 1, 1);
  const auto faults = [&](std::string_view lists) {
    return schedule_faults(parse_schedule(lists), work);
  };
  EXPECT_TRUE(names(faults("0: F0.0 F1.0 B1.0 B0.0 U\n1: U\n"),
                    "rank 0, position 1 (F1.0): the chunk is of rank 1"));
  StepWork three = pipeline(3, 1, 1, 1);
  EXPECT_TRUE(names(
      schedule_faults(parse_schedule("0: F0.0 S1.0>2 R1.0<1 B0.0 U\n1: R1.0<0 F1.0 S2.0>2 R2.0<2 "
                                     "B1.0 S1.0>0 U\n2: R2.0<1 F2.0 B2.0 S2.0>1 U\n"),
                      three),
      "rank 0, position 1 (S1.0>2): the other end is rank 1"));
}

TEST(Pipeline, VerifyKnowsForwardsAlone) {
  const StepWork work{.chunks = 2, .microbatches = 2, .training = false};
  const auto faults = [&](std::string_view list) {
    return schedule_faults(parse_schedule(list), work);
  };
  EXPECT_EQ(text(Accumulate{}, work), "0: L0.0 L1.0 L0.1 L1.1\n");
  EXPECT_TRUE(names(faults("0: L0.0 L1.0 L0.1"), "chunk 1 has no light forward of microbatch 1"));
  EXPECT_TRUE(names(faults("0: L0.0 L1.0 L0.1 F1.1"), "light forwards alone"));
  EXPECT_TRUE(names(faults("0: L0.0 L1.0 L0.1 L1.1 U"), "light forwards alone"));
}

TEST(Pipeline, IsSoundOverASweep) {
  int built = 0;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int v = 1; v <= 4; ++v) {
      for (int microbatches = 1; microbatches <= 24; ++microbatches) {
        for (const PipelineOrder order : {PipelineOrder::kAuto, PipelineOrder::kGpipe}) {
          for (const int depth : {1, 2, 3}) {
            StepWork work = pipeline(ranks, v, 1, microbatches);
            work.order = order;
            work.depth = depth;
            build_schedule(Accumulate{}, work);
            build_schedule(FullShard{}, work);
            ++built;
          }
        }
      }
    }
  }
  EXPECT_EQ(built, 8 * 4 * 24 * 2 * 3);
}

// For each chunk the most microbatches that a rank keeps at a time, from forward to backward.
std::map<int, int> most_kept(const std::vector<Action>& list) {
  std::map<int, std::set<int>> kept;
  std::map<int, int> most;
  for (const Action& a : list) {
    std::set<int>& own = kept[a.chunk];
    if (a.kind == Kind::kForward || a.kind == Kind::kForwardLight) own.insert(a.microbatch);
    most[a.chunk] = std::max(most[a.chunk], static_cast<int>(own.size()));
    if (a.kind == Kind::kBackward) own.erase(a.microbatch);
  }
  return most;
}

// build_schedule() verifies each. With one stage a rank, rank r of P keeps min(M, P - r) microbatches
// of each of its chunks, recomputed or not, shared or not.
TEST(Pipeline, TwoThousandSchedulesAreSoundAndKeepAsManyMicrobatchesAsRanksFollow) {
  int built = 0;
  const ScheduleConfig ways[] = {Accumulate{}, DataParallel{.sharded = true},
                                 FullShard{.reshard = false, .reduce_each = false}};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int v = 1; v <= 4; ++v) {
      for (const int m : {1, 2, 3, 4, 5, 7, 8, 12, 17, 31, 32}) {
        for (const ScheduleConfig& way : ways) {
          for (const bool again : {false, true}) {
            StepWork work = pipeline(ranks, v, v == 1 ? 3 : 1, m);
            work.replicas = std::holds_alternative<Accumulate>(way) ? 1 : 4;
            for (int c = 1; again && c < work.chunks - 1; ++c) work.recomputed.push_back(c);
            const Schedule lists = build_schedule(way, work);
            ++built;
            for (int c = 0; v == 1 && c < work.chunks; ++c) {
              const int rank = c / 3, want = std::min(m, ranks - rank);
              ASSERT_EQ(most_kept(lists[static_cast<size_t>(rank)])[c], want) << to_text(lists);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(built, 8 * 4 * 11 * 3 * 2);  // 2,112
}

// The table of orders/orders.h, of stages alone or all of a rank.
TEST(Pipeline, GraphsThatWaitAreThoseOfTheOrder) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int microbatches : {1, 3, 40}) {
      StepWork work = pipeline(ranks, 1, 1, microbatches);
      std::vector<int> want;
      for (int r = 0; r < ranks; ++r) want.push_back(std::min(microbatches, ranks - r));
      EXPECT_EQ(graphs_held(work), want);
      work.order = PipelineOrder::kZb1p;
      EXPECT_EQ(graphs_held(work), want);
      work.order = PipelineOrder::kGpipe;
      EXPECT_EQ(graphs_held(work), std::vector<int>(static_cast<size_t>(ranks), microbatches));
    }
    for (const int v : {2, 3}) {
      const std::vector<int> held = graphs_held(pipeline(ranks, v, 1, 4 * ranks * v));
      for (int r = 0; r < ranks; ++r) {
        int of_rank = 0;
        for (int s = r; s < ranks * v; s += ranks) of_rank += held[static_cast<size_t>(s)];
        EXPECT_GE(of_rank, 2 * (ranks - 1 - r) + (v - 1) * ranks + 1);
        EXPECT_GE(held[static_cast<size_t>(r)], held[static_cast<size_t>(r + ranks)]);
      }
    }
  }
}

TEST(Pipeline, RefusesStagesThatItsOrderDoesNotKnow) {
  const auto refused = [](const StepWork& work, const std::string& what) {
    try {
      build_schedule(Accumulate{}, work);
      ADD_FAILURE() << what;
    } catch (const Error& e) {
      EXPECT_TRUE(names({e.what()}, what)) << e.what();
    }
  };
  StepWork work = pipeline(2, 2, 1, 4);
  work.order = PipelineOrder::k1f1b;
  refused(work, "the order 1f1b has one stage a rank, not 4 on 2 ranks");
  work.order = PipelineOrder::kZbv;
  refused(work, "the order zbv is of a V: two stages a rank, s and 3 - s");
  work.order = PipelineOrder::kDualPipeV;
  refused(work, "the order dualpipev is of a V: two stages a rank, s and 3 - s");
  work.stage_ranks = {0, 1, 1, 0};
  work.order = PipelineOrder::kInterleaved;
  refused(work, "the order interleaved is of a loop, not of a V");
  work.order = PipelineOrder::k1f1b;
  work.stage_ranks = {0, 1, 1, 1};
  refused(work, "stage 2 is on rank 1 and belongs on rank 0 of 2");
  work.stages = {0, 2, 1, 3};
  refused(work, "chunk 2 is in stage 1 and the one before it in 2");
  work.stages = {0, 1, 2, 4};
  refused(work, "chunk 3 is in stage 4 of 4");
  work.stages = {0, 1};
  refused(work, "stages of 2 chunks; there are 4");
  work = pipeline(2, 1, 1, 4);
  work.order = PipelineOrder::kInterleaved;
  refused(work, "several stages a rank, not one");
  work.depth = 0;
  refused(work, "depth 0");
  work = pipeline(2, 1, 1, 4);
  work.ranks = 3;
  refused(work, "2 stages on 3 ranks");
}

}  // namespace
}  // namespace troupe
