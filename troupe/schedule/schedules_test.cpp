#include "troupe/schedule/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/schedule/schedule_texts_test.h"
#include "troupe/schedule/verify.h"

namespace troupe {
namespace {

Schedule accumulate(const StepWork& work) {
  return build_schedule(Accumulate{}, work);
}

TEST(Schedules, AccumulateIsTheGoldenText) {
  EXPECT_EQ(to_text(accumulate({.chunks = 3, .microbatches = 2})),
            "0: F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1 U\n");
  EXPECT_EQ(to_text(accumulate({.chunks = 3, .recomputed = {1}, .snapshot = true})),
            "0: F0.0 L1.0 F2.0 B2.0 F1.0 B1.0 B0.0 U P\n");
}

TEST(Schedules, AccumulateIsSoundOverASweep) {
  for (int chunks : {1, 2, 5, 18}) {
    for (int microbatches : {1, 3, 16}) {
      for (int recomputed = 0; recomputed <= chunks; ++recomputed) {
        StepWork work{.chunks = chunks, .microbatches = microbatches};
        for (int c = 0; c < recomputed; ++c) work.recomputed.push_back(c);
        const Schedule schedule = accumulate(work);
        EXPECT_TRUE(schedule_faults(schedule, work).empty());
        EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
      }
    }
  }
}

// What a rank holds at the worst moment of the step.
struct PeakLive {
  int graphs = 0;  // chunk and microbatch pairs whose graph waits for its backward
  int inputs = 0;  // whose input alone is kept (light forwards)
};
PeakLive peak_live(const std::vector<Action>& rank) {
  PeakLive peak;
  std::set<std::pair<int, int>> graphs, inputs;  // chunk, microbatch
  for (const Action& action : rank) {
    const std::pair cell{action.chunk, action.microbatch};
    if (action.kind == Kind::kForwardLight) inputs.insert(cell);
    if (action.kind == Kind::kForward) {
      inputs.erase(cell);
      graphs.insert(cell);
    }
    if (action.kind == Kind::kBackward || action.kind == Kind::kBackwardWeight) graphs.erase(cell);
    peak.graphs = std::max(peak.graphs, static_cast<int>(graphs.size()));
    peak.inputs = std::max(peak.inputs, static_cast<int>(inputs.size()));
  }
  return peak;
}

TEST(Schedules, RecomputedChunksKeepTheirInputAlone) {
  const PeakLive none = peak_live(accumulate({.chunks = 5, .microbatches = 4})[0]);
  EXPECT_EQ(none.graphs, 5);
  EXPECT_EQ(none.inputs, 0);
  const PeakLive most =
      peak_live(accumulate({.chunks = 5, .microbatches = 4, .recomputed = {1, 2, 3}})[0]);
  EXPECT_EQ(most.graphs, 2);  // the first chunk, and the block that is computed again
  EXPECT_EQ(most.inputs, 3);
}

TEST(Schedules, AccumulateRefusesASecondRank) {
  EXPECT_THROW(accumulate({.chunks = 2, .ranks = 2}), Error);
}

// Two stages, one forward and one backward at a time: what a further builder will make.
constexpr std::string_view kPipeline =
    "0: F0.0 S1.0>1 F0.1 S1.1>1 R1.0<1 B0.0 R1.1<1 B0.1 U\n"
    "1: R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 I1.1 S1.1>0 W1.1 U\n";
constexpr StepWork pipeline_work() {
  return {.chunks = 2, .microbatches = 2, .ranks = 2};
}

TEST(Verify, AcceptsAPipeline) {
  const StepWork work = pipeline_work();
  EXPECT_EQ(schedule_faults(parse_schedule(kPipeline), work), std::vector<std::string>{});
}

TEST(Verify, AcceptsReplicasWithShardedParameters) {
  const StepWork work{.chunks = 1, .microbatches = 1, .ranks = 2};
  const std::string list = " G0 F0.0 B0.0 X0 A0@2 U0@4\n";
  EXPECT_EQ(schedule_faults(parse_schedule("0:" + list + "1:" + list), work),
            std::vector<std::string>{});
}

TEST(Verify, FindsEveryMissingAction) {
  const StepWork work = pipeline_work();
  const Schedule whole = parse_schedule(kPipeline);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t i = 0; i < whole[rank].size(); ++i) {
      Schedule cut = whole;
      cut[rank].erase(cut[rank].begin() + static_cast<int64_t>(i));
      EXPECT_FALSE(schedule_faults(cut, work).empty()) << to_text(cut);
    }
  }
}

TEST(Verify, FindsEveryRepeatedAction) {
  const StepWork work = pipeline_work();
  const Schedule whole = parse_schedule(kPipeline);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t i = 0; i < whole[rank].size(); ++i) {
      Schedule twice = whole;
      twice[rank].insert(twice[rank].begin() + static_cast<int64_t>(i), whole[rank][i]);
      EXPECT_FALSE(schedule_faults(twice, work).empty()) << to_text(twice);
    }
  }
}

// Rank 1 sends what rank 0 receives only when its own sends are done. At depth 2 the first two of
// either end are on their way.
TEST(Verify, FindsADeadlockOfSends) {
  const Schedule schedule = parse_schedule(
      "0: F0.0 S1.0>1 F0.1 S1.1>1 F0.2 S1.2>1 F0.3 S1.3>1 R2.0<1 F2.0 B2.0 S2.0>1 R2.1<1 F2.1 "
      "B2.1 S2.1>1 R2.2<1 F2.2 B2.2 S2.2>1 R2.3<1 F2.3 B2.3 S2.3>1 R1.0<1 B0.0 R1.1<1 B0.1 R1.2<1 "
      "B0.2 R1.3<1 B0.3 U\n"
      "1: R1.0<0 F1.0 S2.0>0 R1.1<0 F1.1 S2.1>0 R1.2<0 F1.2 S2.2>0 R1.3<0 F1.3 S2.3>0 R2.0<0 B1.0 "
      "S1.0>0 R2.1<0 B1.1 S1.1>0 R2.2<0 B1.2 S1.2>0 R2.3<0 B1.3 S1.3>0 U\n");
  StepWork work{.chunks = 3, .microbatches = 4, .ranks = 2};
  EXPECT_EQ(schedule_faults(schedule, work), std::vector<std::string>{});
  work.depth = 1;
  const auto faults = schedule_faults(schedule, work);
  EXPECT_TRUE(names(faults,
                    "rank 0, position 7 (S1.3>1): waits for ever: rank 1 receives none of "
                    "the 1 before it"));
  EXPECT_TRUE(names(faults, "rank 1, position 5 (S2.1>0): waits for ever"));
}

TEST(Verify, FindsADeadlockOfUses) {
  const Schedule schedule = parse_schedule(
      "0: F0.0 S1.0>1 R2.0<1 F2.0 F0.1 S1.1>1 R2.1<1 F2.1\n"
      "1: R1.0<0 R1.1<0 F1.1 S2.1>0 F1.0 S2.0>0\n");
  const auto faults = schedule_faults(schedule, {.chunks = 3, .microbatches = 2, .ranks = 2});
  EXPECT_TRUE(names(faults, "rank 0, position 3 (F2.0): waits for ever, or for another value"));
  EXPECT_TRUE(names(faults, "rank 1, position 2 (F1.1): waits for ever"));
  EXPECT_TRUE(names(faults, "rank 0: 1 receives from rank 1 are never sent"));
}

// A receive is posted where it stands: that of the gradient holds nothing up.
TEST(Verify, AReceiveWaitsForNobody) {
  const Schedule schedule = parse_schedule(
      "0: R1.0<1 F0.0 S1.0>1 B0.0 U\n"
      "1: R1.0<0 F1.0 B1.0 S1.0>0 U\n");
  EXPECT_EQ(schedule_faults(schedule, {.chunks = 2, .microbatches = 1, .ranks = 2}),
            std::vector<std::string>{});
}

TEST(Verify, FindsTransfersInAnotherOrder) {
  const Schedule schedule = parse_schedule(
      "0: F0.0 F0.1 S1.1>1 S1.0>1 R1.0<1 B0.0 R1.1<1 B0.1 U\n"
      "1: R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 B1.1 S1.1>0 U\n");
  EXPECT_TRUE(names(schedule_faults(schedule, pipeline_work()), "another value than the next"));
}

TEST(Verify, FindsWhatIsWrongWithOneList) {
  const StepWork one{.chunks = 1};
  const auto faults = [&](std::string_view text) {
    return schedule_faults(parse_schedule(text), one);
  };
  EXPECT_TRUE(faults("0: F0.0 B0.0 U").empty());
  EXPECT_TRUE(names(faults("0: B0.0 F0.0 U"), "no forward before it"));
  EXPECT_TRUE(names(faults("0: F0.0 U B0.0"), "before chunk 0's last backward"));
  EXPECT_TRUE(names(faults("0: F0.0 B0.0 U A0"), "reduced after its update"));
  EXPECT_TRUE(names(faults("0: F0.0 A0 B0.0 U"), "reduced before its last backward"));
  EXPECT_TRUE(names(faults("0: F0.0 B0.0@1 U"), "waits for position 1"));
  EXPECT_TRUE(names(faults("0: F0.1 B0.0 U"), "no such microbatch"));
  EXPECT_TRUE(names(faults("0: F1.0 B0.0 U"), "no such chunk"));
  EXPECT_TRUE(names(faults("0: G0 X0 F0.0 B0.0 U"), "not gathered"));
  EXPECT_TRUE(names(faults("0: G0 F0.0 B0.0 U"), "never freed"));
  EXPECT_TRUE(names(faults("0: F0.0 L0.0 B0.0 U"), "a light forward comes first"));
  EXPECT_TRUE(names(faults("0: F0.0 W0.0 U"), "follows the input half"));
}

TEST(Verify, ReplicasMustReduce) {
  const StepWork work{.chunks = 1, .microbatches = 1, .ranks = 2};
  const auto faults = schedule_faults(parse_schedule("0: F0.0 B0.0 A0 U\n1: F0.0 B0.0 U\n"), work);
  EXPECT_TRUE(names(faults, "chunk 0 runs on 2 ranks and is not reduced on each"));
}

TEST(Text, RefusesWhatIsNoSchedule) {
  for (const std::string text :
       {"F0.0", "1: F0.0", "0: Q0", "0: F0.", "0: S1.0<1", "0: F0.0@", "0: F01", "0: F0x"}) {
    EXPECT_THROW(parse_schedule(text), Error) << text;
  }
}

TEST(Schedules, UpdatesInBackwardFollowTheirGradients) {
  StepWork work{.chunks = 3, .microbatches = 2, .updates_in_backward = true};
  EXPECT_EQ(to_text(accumulate(work)),
            "0: F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 U2 B1.1 U1 B0.1 U0 U\n");
  work.tied = {{0, 2}};
  EXPECT_EQ(to_text(accumulate(work)),
            "0: F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 U1 B0.1 U0 U\n");
  work = {.chunks = 3, .replicas = 2, .updates_in_backward = true};
  EXPECT_EQ(text(DataParallel{.sharded = true}, work),
            "0: F0.0 F1.0 F2.0 B2.0 A2 B1.0 A1 U2 B0.0 A0 U1 U0 U G0 G1 G2\n");
}

TEST(Schedules, UpdatesInBackwardAreSoundOverASweep) {
  for (const int chunks : {1, 2, 5}) {
    for (const int microbatches : {1, 3}) {
      for (const bool tied : {false, true}) {
        StepWork work{.chunks = chunks, .microbatches = microbatches, .updates_in_backward = true};
        if (tied && chunks > 1) work.tied = {{0, chunks - 1}};
        EXPECT_TRUE(schedule_faults(accumulate(work), work).empty());
        work.replicas = 2;
        for (const ScheduleConfig& config :
             {ScheduleConfig(DataParallel{}), ScheduleConfig(DataParallel{.sharded = true}),
              ScheduleConfig(FullShard{.prefetch = 1}), ScheduleConfig(FullShard{.prefetch = 2})}) {
          const Schedule schedule = build_schedule(config, work);  // verified
          const std::vector<Action>& list = schedule.front();
          EXPECT_EQ(std::ranges::count(list, Kind::kUpdate, &Action::kind),
                    chunks - (tied && chunks > 1) + 1);
          EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe
