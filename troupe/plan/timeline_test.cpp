#include "troupe/plan/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/schedule/schedules.h"

namespace troupe {
namespace {

StepCosts even(int chunks) {
  const ChunkCosts each{.forward = 1,
                        .backward = 2,
                        .values = 100,
                        .owned = 10,
                        .state = 30,
                        .made = 100,
                        .gradient = 100,
                        .summing = 200,
                        .sum = 20,
                        .saved = 50,
                        .input = 5};
  return {.chunks = std::vector<ChunkCosts>(static_cast<size_t>(chunks), each), .update = 0.5};
}

RankTimeline alone(const ScheduleConfig& config, const StepWork& work, const StepCosts& costs) {
  return timeline_of(build_schedule(config, work), work, costs).at(0);
}

TEST(Timeline, OneRankComputesAllTheTime) {
  const StepWork work{.chunks = 3, .microbatches = 2};
  const RankTimeline t = alone(Accumulate{}, work, even(3));
  EXPECT_DOUBLE_EQ(t.seconds, 2 * 3 * (1 + 2) + 0.5);
  EXPECT_DOUBLE_EQ(t.compute, 18);
  EXPECT_DOUBLE_EQ(t.update, 0.5);
  EXPECT_EQ(t.exposed + t.exchange + t.bubble + t.collectives, 0);
}

TEST(Timeline, TheUpdateHoldsWhatItNeedsBesideTheGradients) {
  const StepWork work{.chunks = 3};
  StepCosts costs = even(3);
  const double before = alone(Accumulate{}, work, costs).peak.total();
  costs.update_memory = 0;
  EXPECT_EQ(alone(Accumulate{}, work, costs).peak.total(), before);
  costs.update_memory = 1000;
  const StepMemory peak = alone(Accumulate{}, work, costs).peak;
  EXPECT_EQ(peak.workspace, 1000);
  EXPECT_EQ(peak.gradients, 3 * 100);
  EXPECT_EQ(peak.total(), 3 * (100 + 30 + 100) + 1000);
}

TEST(Timeline, TheLightForwardIsPaidForTwice) {
  const StepWork work{.chunks = 3, .recomputed = {1}};
  EXPECT_DOUBLE_EQ(alone(Accumulate{}, work, even(3)).compute, 9 + 1);
}

// F0 F1 F2 B2 A2 B1 A1 B0 A0 U: sums of 1.5 s begin at 5, 7 and 9, and end at 6.5, 8.5, 10.5.
TEST(Timeline, SumsHideBehindBackwardButForTheLast) {
  StepCosts costs = even(3);
  for (ChunkCosts& c : costs.chunks) c.reduce = 1.5;
  const RankTimeline t = alone(DataParallel{.sharded = false}, {.chunks = 3}, costs);
  EXPECT_DOUBLE_EQ(t.exposed, 1.5);
  EXPECT_DOUBLE_EQ(t.collectives, 4.5);
  EXPECT_DOUBLE_EQ(t.seconds, 9 + 1.5 + 0.5);
}

// With half as long again beside them: B1 takes 2 + 0.5 of the 1.5 that A2 needs, and so B0.
TEST(Timeline, ComputationBesideACollectiveIsSlower) {
  StepCosts costs = even(3);
  for (ChunkCosts& c : costs.chunks) c.reduce = 1.5;
  costs.contention = 0.5;
  const RankTimeline t = alone(DataParallel{.sharded = false}, {.chunks = 3}, costs);
  EXPECT_DOUBLE_EQ(t.compute, 9 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(t.seconds, 9 + 2 * 0.5 + 1.5 + 0.5);
  // A sum that outlasts the computation: all of that is slower.
  for (ChunkCosts& c : costs.chunks) c.reduce = 30;
  EXPECT_DOUBLE_EQ(alone(DataParallel{.sharded = false}, {.chunks = 3}, costs).compute,
                   5 + 4 * 1.5);
}

// F0 F1 B1 A1 B0 A0 U: before each sum gradients are laid side by side. B0 takes 3 s for 1.5 s of
// its 2, beside A1, and then 0.5.
TEST(Timeline, GradientsAreLaidSideBySideBeforeASum) {
  StepCosts costs = even(2);
  for (ChunkCosts& c : costs.chunks) c.laying = 0.25, c.reduce = 3;
  costs.contention = 1;
  const RankTimeline t = alone(DataParallel{.sharded = false}, {.chunks = 2}, costs);
  EXPECT_DOUBLE_EQ(t.compute, 4 + 0.25 + 3.5 + 0.25);
}

// Two microbatches, of which the last one's sums go on over the replicas.
TEST(Timeline, ReplicasAddUpOnceAStep) {
  StepCosts costs = even(1);
  costs.chunks[0].reduce = 0.25;
  costs.chunks[0].replicate = 4;
  const RankTimeline t = alone(FullShard{}, {.chunks = 1, .microbatches = 2, .replicas = 4}, costs);
  EXPECT_DOUBLE_EQ(t.collectives, 0.25 + 0.25 + 4);
  EXPECT_DOUBLE_EQ(t.exposed, 4.25);
}

// F0 F1 B1 A1 B0 A0 U: the replicas' sum of 1 begins with A0, after B0, and is over before that of
// 0.
TEST(Timeline, ReplicasAddUpBesideTheBackwardThatFollows) {
  StepCosts costs = even(2);
  for (ChunkCosts& c : costs.chunks) c.reduce = 1, c.replicate = 1;
  const RankTimeline t = alone(FullShard{}, {.chunks = 2, .replicas = 4}, costs);
  EXPECT_DOUBLE_EQ(t.collectives, 4);
  EXPECT_DOUBLE_EQ(t.exposed, 3);  // 1 of 1's replicas, then of 0
}

// A rank waits for a sum before it begins the next, so that it holds the buffer of one at a time.
TEST(Timeline, ASumWaitsForTheOneBefore) {
  StepCosts costs = even(3);
  for (ChunkCosts& c : costs.chunks) c.reduce = 10;
  const RankTimeline t = alone(DataParallel{.sharded = false}, {.chunks = 3}, costs);
  EXPECT_DOUBLE_EQ(t.seconds, 5 + 30 + 0.5);
  EXPECT_DOUBLE_EQ(t.exposed, 30 - 2 - 2);
  // As A2 is laid out: its buffer, the gradients that it is of, two graphs. Later ones hold less.
  EXPECT_EQ(t.peak.gradients, 200 + 100);
  EXPECT_EQ(t.peak.activations, 2 * 50);
}

// After the update: G0 G1 G2, of 2 s each, before F0 F1 F2 of 1 s: F0 waits 2, F1 and F2 1 each.
TEST(Timeline, GathersAfterTheUpdateDelayTheNextForward) {
  StepCosts costs = even(3);
  for (ChunkCosts& c : costs.chunks) c.gather = 2;
  const RankTimeline t = alone(DataParallel{.sharded = true}, {.chunks = 3}, costs);
  EXPECT_DOUBLE_EQ(t.exposed, 2 + 1 + 1);
  EXPECT_DOUBLE_EQ(t.seconds, 9 + 4 + 0.5);
}

TEST(Timeline, WhatIsExchangedIsWaitedForInBothPasses) {
  StepCosts costs = even(2);
  costs.chunks[1].exchange = 0.25;
  const RankTimeline t = alone(Accumulate{}, {.chunks = 2}, costs);
  EXPECT_DOUBLE_EQ(t.exchange, 0.5);
  EXPECT_DOUBLE_EQ(t.seconds, 6 + 0.5 + 0.5);
}

TEST(Timeline, TokensOfRanksThatShareAMicrobatchAreWaitedFor) {
  StepCosts costs = even(2);
  costs.chunks[1].tokens = 0.25;
  costs.chunks[1].tokens_back = 0.5;
  const RankTimeline t = alone(Accumulate{}, {.chunks = 2}, costs);
  EXPECT_DOUBLE_EQ(t.tokens, 0.75);
  EXPECT_EQ(t.exchange, 0);
  EXPECT_DOUBLE_EQ(t.seconds, 6 + 0.75 + 0.5);
}

// Each rank has what it needs for itself, beside the chunks of all.
TEST(Timeline, RanksOfAPipelineHaveTheirOwnCosts) {
  const StepWork work{.chunks = 2, .ranks = 2, .stages = {0, 1}, .stage_ranks = {0, 1}};
  const Schedule schedule = build_schedule(Accumulate{}, work);
  std::vector<StepCosts> costs(2, even(2));
  costs[0].update = 1;
  costs[1].update = 3;
  costs[1].workspace = 70;
  costs[1].runtime = 7;
  const std::vector<RankTimeline> t = timeline_of(schedule, work, costs);
  EXPECT_DOUBLE_EQ(t[0].update, 1);
  EXPECT_DOUBLE_EQ(t[1].update, 3);
  EXPECT_EQ(t[0].peak.runtime, 0);
  EXPECT_EQ(t[1].peak.runtime, 7);
  EXPECT_EQ(t[1].peak.workspace, 70);
  costs[1].chunks.pop_back();
  EXPECT_THROW(timeline_of(schedule, work, costs), Error);
  costs.pop_back();
  EXPECT_THROW(timeline_of(schedule, work, costs), Error);
}

// Two stages of one chunk: rank 1 waits for its first input, rank 0 for its first gradient.
TEST(Timeline, AStageWaitsForTheOther) {
  const Schedule schedule = parse_schedule(
      "0: F0.0 S1.0>1 F0.1 S1.1>1 R1.0<1 B0.0 R1.1<1 B0.1 U\n"
      "1: R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 B1.1 S1.1>0 U\n");
  const StepWork work{.chunks = 2, .microbatches = 2, .ranks = 2};
  StepCosts costs = even(2);
  for (ChunkCosts& c : costs.chunks) c.send = 0.25;
  costs.update = 0;
  const std::vector<RankTimeline> t = timeline_of(schedule, work, costs);
  ASSERT_EQ(t.size(), 2U);
  // In the second step rank 0 begins as it ended the first; rank 1 ends 3 + 0.25 after rank 0's
  // last forward can have begun.
  EXPECT_DOUBLE_EQ(t[0].compute, 6);
  EXPECT_DOUBLE_EQ(t[1].compute, 6);
  EXPECT_GT(t[0].bubble, 0);
  EXPECT_DOUBLE_EQ(t[0].seconds, t[0].compute + t[0].bubble);
  EXPECT_DOUBLE_EQ(step_seconds(t), std::max(t[0].seconds, t[1].seconds));
}

TEST(Timeline, PartsAddUpToTheStepWhateverTheSchedule) {
  for (const bool full : {false, true}) {
    for (const int chunks : {1, 2, 7}) {
      for (const int microbatches : {1, 3}) {
        StepCosts costs = even(chunks);
        for (size_t c = 0; c < costs.chunks.size(); ++c) {
          costs.chunks[c].gather = 0.3 * static_cast<double>(c + 1);
          costs.chunks[c].reduce = 0.7;
          costs.chunks[c].exchange = 0.1;
        }
        const StepWork work{.chunks = chunks, .microbatches = microbatches, .replicas = 4};
        const RankTimeline t = full ? alone(FullShard{}, work, costs)
                                    : alone(DataParallel{.sharded = true}, work, costs);
        EXPECT_NEAR(t.seconds, t.compute + t.exchange + t.exposed + t.bubble + t.update, 1e-9);
        EXPECT_LE(t.exposed, t.collectives + 1e-9);
        for (const TimeSlot& s : t.slots) EXPECT_LE(s.begin, s.end);
      }
    }
  }
}

TEST(Holdings, GradientsTakeThePlaceOfGraphs) {
  const RankTimeline one = alone(Accumulate{}, {.chunks = 3}, even(3));
  EXPECT_EQ(one.peak.values, 300);
  EXPECT_EQ(one.peak.state, 90);
  // Before B2 all three graphs are there; each backward gives more than it frees.
  EXPECT_EQ(one.peak.activations + one.peak.gradients, std::max(150, 300));
  // At the end of B2.1 its gradients stand beside all sums, and two graphs.
  const RankTimeline two = alone(Accumulate{}, {.chunks = 3, .microbatches = 2}, even(3));
  EXPECT_EQ(two.peak.gradients, 300 + 100);
  EXPECT_EQ(two.peak.activations, 100);
}

// Two microbatches: at the first one's end gradients as made, at the second's the sums, and
// what is added to the last of them.
TEST(Holdings, TheFirstGradientIsHeldAsItIsMade) {
  StepCosts costs = even(3);
  for (ChunkCosts& c : costs.chunks) c.made = 60, c.saved = 100;
  const StepMemory begin = alone(Accumulate{}, {.chunks = 3, .microbatches = 2}, costs).peak;
  EXPECT_EQ(begin.gradients, 3 * 60);  // as the second one's backward begins
  EXPECT_EQ(begin.activations, 3 * 100);
  for (ChunkCosts& c : costs.chunks) c.gradient = 500;
  const StepMemory end = alone(Accumulate{}, {.chunks = 3, .microbatches = 2}, costs).peak;
  EXPECT_EQ(end.gradients, 3 * 500 + 60);
  EXPECT_EQ(end.activations, 0);
}

TEST(Holdings, FullShardingHoldsTheChunksInUseAlone) {
  StepCosts costs = even(8);
  for (ChunkCosts& c : costs.chunks) c.made = c.gradient = c.summing = c.sum = 0;
  const RankTimeline t = alone(FullShard{.prefetch = 1}, {.chunks = 8, .replicas = 10}, costs);
  EXPECT_EQ(t.peak.state, 8 * 30);
  EXPECT_EQ(t.peak.values, 8 * 10 + 2 * 100);
  const RankTimeline kept =
      alone(FullShard{.prefetch = 1, .reshard = false}, {.chunks = 8, .replicas = 10}, costs);
  EXPECT_EQ(kept.peak.values, 8 * 10 + 8 * 100);
}

TEST(Holdings, ARecomputedChunkKeepsItsInput) {
  const RankTimeline t = alone(Accumulate{}, {.chunks = 4, .recomputed = {0, 1, 2}}, even(4));
  // F3 on three inputs; at the end of B0 the gradients of all.
  EXPECT_EQ(t.peak.activations + t.peak.gradients, std::max(3 * 5 + 50, 400));
}

// A microbatch that has gone back leaves nothing: four hold at once what one does.
TEST(Holdings, MoreMicrobatchesKeepNoMoreOfARecomputedChunk) {
  StepCosts costs = even(4);
  for (ChunkCosts& c : costs.chunks) c.made = c.gradient = c.summing = c.sum = 0;
  for (const int microbatches : {1, 4}) {
    const StepWork work{.chunks = 4, .microbatches = microbatches, .recomputed = {0, 1, 2}};
    EXPECT_EQ(alone(Accumulate{}, work, costs).peak.activations, 3 * 5 + 50) << microbatches;
  }
}

}  // namespace
}  // namespace troupe
