// What a pipeline's orders promise (schedule/orders/orders.h), on its timeline: seconds in which a
// rank waits, and what it holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "troupe/plan/timeline.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/schedule/schedules.h"
#include "troupe/testing/sanitized.h"

namespace troupe {
namespace {

StepWork pipeline(int ranks, int virtual_stages, int microbatches, PipelineOrder order) {
  const int stages = ranks * virtual_stages;
  StepWork out{.chunks = stages, .microbatches = microbatches, .ranks = ranks};
  for (int s = 0; s < stages; ++s) out.stages.push_back(s), out.stage_ranks.push_back(s % ranks);
  out.order = order;
  return out;
}

constexpr double kForward = 1, kBackward = 2.25;
constexpr int kRanks = unless_sanitized(16, 7);

std::vector<RankTimeline> even(const StepWork& work) {
  const ChunkCosts each{.forward = kForward, .backward = kBackward};
  const auto chunks = static_cast<size_t>(work.chunks);
  return timeline_of(build_schedule(Accumulate{}, work), work,
                     {.chunks = std::vector<ChunkCosts>(chunks, each)});
}

// Chunks alike and transfers that cost nothing.
TEST(Idle, IsTheFormulas) {
  for (int ranks = 1; ranks <= kRanks; ++ranks) {
    for (const PipelineOrder order : {PipelineOrder::k1f1b, PipelineOrder::kGpipe}) {
      for (int m = 1; m <= 64; m += m < 20 ? 1 : 11) {
        for (const RankTimeline& rank : even(pipeline(ranks, 1, m, order))) {
          ASSERT_NEAR(rank.bubble, (ranks - 1) * (kForward + kBackward), 1e-12 * rank.seconds);
          ASSERT_NEAR(rank.compute, m * (kForward + kBackward), 1e-12 * rank.seconds);
        }
      }
    }
  }
}

// A chunk is 1 / v of a rank's work: where P divides M a rank waits 1 / v as long, and never longer
// than 1f1b would have it wait.
TEST(Idle, OfInterleavedStagesIsPart) {
  for (const int ranks : {2, 3, 4, 7, 8, 16}) {
    if (ranks > kRanks) break;
    for (int v = 2; v <= 4; ++v) {
      for (int m = 1; m <= 64; m += ranks < 8 ? 1 : 5) {
        const double least = (ranks - 1) * (kForward + kBackward);
        for (const RankTimeline& rank : even(pipeline(ranks, v, m, PipelineOrder::kInterleaved))) {
          ASSERT_LE(rank.bubble, v * least * (1 + 1e-12));
          const double off = m % ranks == 0 ? rank.bubble - least : 0;
          ASSERT_NEAR(off, 0, 1e-12 * rank.seconds);
        }
      }
    }
  }
}

// W fills what a rank would wait for, where it is no longer than F and I.
TEST(Idle, OfLateWeightsIsTheFormula) {
  struct Parts {
    double forward, input, weight;
  };
  for (const Parts& p : {Parts{1, 1, 1}, Parts{1, 1.25, 0.75}, Parts{1, 1.25, 1}, Parts{2, 3, 1}}) {
    for (int ranks = 1; ranks <= kRanks; ++ranks) {
      for (int m = 1; m <= 64; m += m < 20 ? 1 : 11) {
        const StepWork work = pipeline(ranks, 1, m, PipelineOrder::kZb1p);
        const ChunkCosts each{
            .forward = p.forward, .backward = p.input + p.weight, .weight = p.weight};
        const auto chunks = static_cast<size_t>(ranks);
        const double all = p.forward + p.input + p.weight, most = (ranks - 1) * all;
        const double late = most - 2 * (ranks - 1) * p.weight;
        for (const RankTimeline& rank :
             timeline_of(build_schedule(Accumulate{}, work), work,
                         {.chunks = std::vector<ChunkCosts>(chunks, each)})) {
          ASSERT_LE(rank.bubble, most * (1 + 1e-12));
          const double off = m >= 2 * ranks - 1 ? rank.bubble - late : 0;
          ASSERT_NEAR(off, 0, 1e-12 * rank.seconds) << ranks << " " << m;
        }
      }
    }
  }
}

StepWork vee(int ranks, int microbatches, PipelineOrder order) {
  StepWork out = pipeline(ranks, 2, microbatches, order);
  for (int s = 0; s < 2 * ranks; ++s) {
    out.stage_ranks[static_cast<size_t>(s)] = std::min(s, 2 * ranks - 1 - s);
  }
  return out;
}

// Where a stage's F, I and W take as long, a rank of a V waits for the first forward to come and
// for the last rank to end, and not between: (P - 1) F in all. Never longer than 1f1b's.
TEST(Idle, OfAVeeIsItsEndsAlone) {
  for (int ranks = 1; ranks <= kRanks; ++ranks) {
    for (int m = 1; m <= 64; m += m < 36 ? 1 : 7) {
      const StepWork work = vee(ranks, m, PipelineOrder::kZbv);
      const ChunkCosts each{.forward = 1, .backward = 2, .weight = 1};
      const auto chunks = static_cast<size_t>(work.chunks);
      for (const RankTimeline& rank :
           timeline_of(build_schedule(Accumulate{}, work), work,
                       {.chunks = std::vector<ChunkCosts>(chunks, each)})) {
        ASSERT_LE(rank.bubble, (ranks - 1) * 6 * (1 + 1e-12));
        const double off = m >= 2 * ranks - 1 ? rank.bubble - (ranks - 1) : 0;
        ASSERT_NEAR(off, 0, 1e-12 * rank.seconds) << ranks << " " << m;
      }
    }
  }
}

// With F and B one after the other; a pair that takes less makes it less.
TEST(Idle, OfDualPipeVIsAtMostTheFormula) {
  struct Parts {
    double forward, input, weight;
  };
  for (const Parts& p : {Parts{1, 1, 1}, Parts{1, 1.25, 0.75}, Parts{1, 1.25, 1}, Parts{2, 3, 1}}) {
    for (int ranks = 1; ranks <= kRanks; ++ranks) {
      for (int m = 1; m <= 64; m += m < 36 ? 1 : 7) {
        const StepWork work = vee(ranks, m, PipelineOrder::kDualPipeV);
        const double back = p.input + p.weight;
        const ChunkCosts each{.forward = p.forward, .backward = back, .weight = p.weight};
        const auto chunks = static_cast<size_t>(work.chunks);
        const double most = (ranks - 1) * (p.forward + 2 * back - 3 * p.weight),
                     of_1f1b = (ranks - 1) * 2 * (p.forward + back);
        for (const RankTimeline& rank :
             timeline_of(build_schedule(Accumulate{}, work), work,
                         {.chunks = std::vector<ChunkCosts>(chunks, each)})) {
          ASSERT_LE(rank.bubble, (m >= 2 * ranks ? most : of_1f1b) + 1e-12 * rank.seconds);
          const bool even = p.input == 1 && m >= 2 * ranks;
          ASSERT_NEAR(even ? rank.bubble - (ranks - 1) : 0, 0, 1e-12 * rank.seconds);
        }
      }
    }
  }
}

TEST(Idle, OfForwardsAloneIsOneFillAndOneDrain) {
  StepWork work = pipeline(4, 1, 6, PipelineOrder::kAuto);
  work.training = false;
  const Schedule schedule = build_schedule(Accumulate{}, work);
  const StepCosts costs{.chunks = std::vector<ChunkCosts>(4, {.forward = 1})};
  for (const RankTimeline& rank : timeline_of(schedule, work, costs)) {
    EXPECT_DOUBLE_EQ(rank.compute, 6);
    EXPECT_LE(rank.bubble, 3);
  }
}

// R1.0 F1.0 ..: the value is sent at 1, travels 0.5 and is used at 1.5; F1.1's travels from 2 on.
// Rank 1 ends B1.1 at 1.5 + 2 (1 + 2); rank 0 has its gradients at 5 and 8, and is done at 10.
TEST(Timeline, AValueTravelsWhenItIsSentAndItsReceivePosted) {
  const StepWork work{.chunks = 2, .microbatches = 2, .ranks = 2};
  const Schedule schedule = parse_schedule(
      "0: F0.0 S1.0>1 F0.1 S1.1>1 R1.0<1 B0.0 R1.1<1 B0.1 U\n"
      "1: R1.0<0 R1.1<0 F1.0 B1.0 S1.0>0 F1.1 B1.1 S1.1>0 U\n");
  const StepCosts costs{.chunks =
                            std::vector<ChunkCosts>(2, {.forward = 1, .backward = 2, .send = 0.5})};
  const std::vector<RankTimeline> t = timeline_of(schedule, work, costs);
  EXPECT_DOUBLE_EQ(t[0].seconds, 10);
  EXPECT_DOUBLE_EQ(t[1].seconds, 10);  // both meet at the update
  EXPECT_DOUBLE_EQ(t[0].bubble, 10 - 6);
}

// S1.2 stands at 3. At depth 1 it waits until 1.1 is received, which rank 1 posts when it is done
// with B1.0, at 8.
TEST(Timeline, ASendWaitsForTheOneDepthBeforeIt) {
  StepWork work{.chunks = 2, .microbatches = 3, .ranks = 2};
  const Schedule schedule = parse_schedule(
      "0: F0.0 S1.0>1 F0.1 S1.1>1 F0.2 S1.2>1 R1.0<1 B0.0 R1.1<1 B0.1 R1.2<1 B0.2 U\n"
      "1: R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 B1.1 S1.1>0 R1.2<0 F1.2 B1.2 S1.2>0 U\n");
  StepCosts costs{.chunks = std::vector<ChunkCosts>(2, {.forward = 1, .backward = 2})};
  costs.chunks[1].forward = 5;
  const auto waited = [&] {
    double out = 0;
    const std::vector<RankTimeline> ranks = timeline_of(schedule, work, costs);
    for (const TimeSlot& s : ranks[0].slots) {
      if (s.action.kind == Kind::kSend && s.lane == Lane::kWait) out += s.end - s.begin;
    }
    return out;
  };
  EXPECT_EQ(waited(), 0);
  work.depth = 1;
  EXPECT_DOUBLE_EQ(waited(), 5);
}

TEST(Timeline, EndsAtAnySpeeds) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> seconds(0.01, 3);
  for (const PipelineOrder order : {PipelineOrder::kAuto, PipelineOrder::kGpipe}) {
    for (const int v : {1, 3}) {
      for (const int depth : {1, 2, 3}) {
        StepWork work = pipeline(5, v, 12, order);
        work.depth = depth;
        const Schedule schedule = build_schedule(Accumulate{}, work);
        for (int speed = 0; speed < 100; ++speed) {
          StepCosts costs;
          for (int c = 0; c < work.chunks; ++c) {
            costs.chunks.push_back(
                {.forward = seconds(random), .backward = seconds(random), .send = seconds(random)});
          }
          for (const RankTimeline& rank : timeline_of(schedule, work, costs)) {
            ASSERT_NEAR(rank.seconds, rank.compute + rank.bubble, 1e-9);
          }
        }
      }
    }
  }
}

TEST(Holdings, ARankHoldsItsOwnChunksAndWhatTravels) {
  StepWork work = pipeline(4, 1, 8, PipelineOrder::k1f1b);
  const auto peaks = [&](const ChunkCosts& each) {
    return timeline_of(build_schedule(Accumulate{}, work), work,
                       {.chunks = std::vector<ChunkCosts>(4, each)});
  };
  const std::vector<RankTimeline> graphs = peaks({.values = 100, .state = 30, .saved = 50});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(graphs[rank].peak.values, 100);
    EXPECT_EQ(graphs[rank].peak.state, 30);
    EXPECT_EQ(graphs[rank].peak.activations, 50 * (4 - rank));
  }
  // Two sends of activations are held, and before B0.4 its gradient and that of B0.5; the last rank
  // holds two sends of gradients and the next input.
  const std::vector<RankTimeline> borders = peaks({.saved = 1000, .border = 7});
  EXPECT_EQ(borders[0].peak.activations, 4000 + 2 * 7 + 2 * 7);
  EXPECT_EQ(borders[3].peak.activations, 1000 + 2 * 7 + 7);
}

// I keeps of the graph what W needs.
TEST(Holdings, LateGradientsHoldTheirOperands) {
  const StepWork work{.chunks = 2, .microbatches = 1};
  const StepCosts costs{.chunks = std::vector<ChunkCosts>(2, {.forward = 1,
                                                              .backward = 2,
                                                              .weight = 0.75,
                                                              .made = 10,
                                                              .gradient = 10,
                                                              .saved = 100,
                                                              .late = 40})};
  const Schedule schedule = parse_schedule("0: F0.0 F1.0 I1.0 I0.0 W1.0 W0.0 U\n");
  const RankTimeline t = timeline_of(schedule, work, costs).at(0);
  EXPECT_EQ(t.peak.activations, 200);
  EXPECT_DOUBLE_EQ(t.seconds, 6);
  for (const TimeSlot& s : t.slots) {
    const double wanted = s.action.kind == Kind::kBackwardWeight  ? 0.75
                          : s.action.kind == Kind::kBackwardInput ? 1.25
                                                                  : s.end - s.begin;
    EXPECT_DOUBLE_EQ(s.end - s.begin, wanted);
  }
}

}  // namespace
}  // namespace troupe
