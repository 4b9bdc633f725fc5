// The schedules of data parallelism: DataParallel and FullShard.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/schedule/schedule_texts_test.h"
#include "troupe/schedule/schedules.h"
#include "troupe/schedule/verify.h"

namespace troupe {
namespace {

using Faults = ScheduleFaults;

// The same step with every replica's list written out, as a schedule of many ranks.
struct GroupTopology {
  Schedule schedule;
  StepWork work;
};
GroupTopology spread(const ScheduleConfig& config, StepWork work) {
  const Schedule one = build_schedule(config, work);
  work.ranks = std::exchange(work.replicas, 1);
  return {Schedule(static_cast<size_t>(work.ranks), one[0]), work};
}

TEST(Replicas, DataParallelIsTheGoldenText) {
  const StepWork work{.chunks = 2, .microbatches = 2, .replicas = 4};
  EXPECT_EQ(text(DataParallel{.sharded = false}, work),
            "0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 A1 B0.1 A0 U\n");
  EXPECT_EQ(text(DataParallel{}, work),
            "0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 A1 B0.1 A0 U G0 G1\n");
  EXPECT_EQ(
      text(DataParallel{},
           {.chunks = 3, .recomputed = {1}, .snapshot = true, .replicas = 2, .tied = {{0, 2}}}),
      "0: F0.0 L1.0 F2.0 B2.0 F1.0 B1.0 A1 B0.0 A0 U G0 G1 P\n");
}

TEST(Replicas, FullShardIsTheGoldenText) {
  const StepWork work{.chunks = 3, .replicas = 4};
  EXPECT_EQ(text(FullShard{}, work),
            "0: G0 G1 F0.0 X0 G2 F1.0 F2.0 B2.0 X2 A2.0 G0 B1.0 X1 A1.0 B0.0 X0 A0.0 U\n");
  EXPECT_EQ(text(FullShard{.prefetch = 0}, work),
            "0: G0 F0.0 X0 G1 F1.0 X1 G2 F2.0 B2.0 X2 A2.0 G1 B1.0 X1 A1.0 G0 B0.0 X0 A0.0 U\n");
  EXPECT_EQ(text(FullShard{.reshard = false}, work),
            "0: G0 G1 F0.0 G2 F1.0 F2.0 B2.0 X2 A2.0 B1.0 X1 A1.0 B0.0 X0 A0.0 U\n");
  EXPECT_EQ(
      text(FullShard{}, {.chunks = 4, .replicas = 4, .tied = {{0, 3}}}),
      "0: G0 G1 F0.0 G2 F1.0 X1 F2.0 F3.0 B3.0 G1 B2.0 X2 A2.0 B1.0 X1 A1.0 B0.0 X0 A0.0 U\n");
  EXPECT_EQ(text(FullShard{.prefetch = 0, .reduce_each = false},
                 {.chunks = 2, .microbatches = 2, .recomputed = {0}, .snapshot = true}),
            "0: G0 L0.0 X0 G1 F1.0 B1.0 X1 G0 F0.0 B0.0 L0.1 X0 G1 F1.1 B1.1 X1 A1 G0 F0.1 B0.1 X0 "
            "A0 U P\n");
}

std::vector<ScheduleConfig> configs(int chunks) {
  std::vector<ScheduleConfig> out{DataParallel{.sharded = false}, DataParallel{}};
  for (const int prefetch : {0, 1, 2, chunks}) {
    for (const bool reshard : {false, true}) {
      for (const bool each : {false, true}) {
        out.push_back(FullShard{.prefetch = prefetch, .reshard = reshard, .reduce_each = each});
      }
    }
  }
  return out;
}

template <class F>
void sweep(const std::vector<int>& all_chunks, const std::vector<int>& replicas, F&& f) {
  for (const int chunks : all_chunks) {
    for (const int microbatches : {1, 2, 5}) {
      for (const int count : replicas) {
        for (int form = 0; form < 4; ++form) {
          StepWork work{.chunks = chunks, .microbatches = microbatches, .replicas = count};
          for (int c = 0; form % 2 == 1 && c < chunks; c += 2) work.recomputed.push_back(c);
          if (form / 2 == 1 && chunks > 1) work.tied.emplace_back(0, chunks - 1);
          for (const ScheduleConfig& config : configs(chunks)) f(config, work);
        }
      }
    }
  }
}

int count(const std::vector<Action>& list, Kind kind) {
  return static_cast<int>(
      std::count_if(list.begin(), list.end(), [&](const Action& a) { return a.kind == kind; }));
}

// Parameters of a chunk, no two sums of neighbors alike: what is counted is bytes, and not chunks.
int64_t bytes_of(int chunk) {
  return 1000 + 37 * chunk * chunk;
}

// What a list does with parameters, read off its actions. Tied chunks have one copy of them.
struct Traffic {
  // Bytes of each owner, over the step.
  std::vector<int64_t> gathered = {}, freed = {}, reduced = {};
  int64_t peak = 0;  // gathered at a time
};

Traffic traffic_of(const std::vector<Action>& list, const StepWork& work) {
  const auto chunks = static_cast<size_t>(work.chunks);
  Traffic out{.gathered = std::vector<int64_t>(chunks),
              .freed = std::vector<int64_t>(chunks),
              .reduced = std::vector<int64_t>(chunks)};
  int64_t here = 0;
  for (const Action& a : list) {
    const auto at = static_cast<size_t>(a.chunk);
    if (a.kind == Kind::kGather) out.gathered[at] += bytes_of(a.chunk), here += bytes_of(a.chunk);
    if (a.kind == Kind::kFree) out.freed[at] += bytes_of(a.chunk), here -= bytes_of(a.chunk);
    if (a.kind == Kind::kReduce) out.reduced[at] += bytes_of(a.chunk);
    out.peak = std::max(out.peak, here);
  }
  return out;
}

// The most bytes of `width` neighbors out of chunks [from, end).
int64_t widest(int from, int end, int width) {
  int64_t most = 0;
  for (int first = from; first < end; ++first) {
    int64_t sum = 0;
    for (int c = first; c < std::min(first + width, end); ++c) sum += bytes_of(c);
    most = std::max(most, sum);
  }
  return most;
}

// With C chunks, forward uses c at c, backward at 2 C - 2 - c and the next microbatch's forward at
// 2 C - 2 + c: between two uses a chunk stays where they are at most 1 + prefetch apart. So it is
// gathered once for the forward and once for the backward of each microbatch, unless kept.
int64_t gathers_of(const FullShard& shard, const StepWork& work, int chunk) {
  const int far = 1 + shard.prefetch;
  int64_t out = 1;
  if (shard.reshard && 2 * (work.chunks - 1 - chunk) > far) out += work.microbatches;
  if (2 * chunk > far) out += work.microbatches - 1;
  return out;
}

Traffic expected(const FullShard& shard, const StepWork& work) {
  const std::vector<int> owner = owners(work);
  Traffic out;
  int64_t all = 0;
  for (int c = 0; c < work.chunks; ++c) {
    const bool owns = owner[static_cast<size_t>(c)] == c;
    const int64_t bytes = owns ? bytes_of(c) : 0;
    const bool stays = c == 0 && !work.tied.empty();  // from the first chunk's use to the last's
    out.gathered.push_back(bytes * (stays ? 1 : gathers_of(shard, work, c)));
    out.reduced.push_back(bytes * (shard.reduce_each ? work.microbatches : 1));
    all += bytes;
  }
  out.freed = out.gathered;
  if (!shard.reshard) {
    out.peak = all;
  } else if (work.tied.empty()) {
    out.peak = widest(0, work.chunks, shard.prefetch + 1);
  } else {
    out.peak = bytes_of(0) + widest(1, work.chunks - 1, shard.prefetch + 1);
  }
  return out;
}

Traffic expected(const DataParallel& data, const StepWork& work) {
  const std::vector<int> owner = owners(work);
  Traffic out{.freed = std::vector<int64_t>(owner.size())};
  for (int c = 0; c < work.chunks; ++c) {
    out.reduced.push_back(owner[static_cast<size_t>(c)] == c ? bytes_of(c) : 0);
    out.gathered.push_back(data.sharded ? out.reduced.back() : 0);
    out.peak += out.gathered.back();
  }
  return out;
}

void check_list(const ScheduleConfig& config, const StepWork& work,
                const std::vector<Action>& list) {
  const int cells = work.chunks * work.microbatches;
  const int light = static_cast<int>(work.recomputed.size()) * work.microbatches;
  ASSERT_EQ(count(list, Kind::kForward), cells);
  ASSERT_EQ(count(list, Kind::kForwardLight), light);
  ASSERT_EQ(count(list, Kind::kBackward), cells);
  ASSERT_EQ(count(list, Kind::kUpdate), 1);
  const auto* const shard = std::get_if<FullShard>(&config);
  const Traffic want =
      shard != nullptr ? expected(*shard, work) : expected(std::get<DataParallel>(config), work);
  const Traffic got = traffic_of(list, work);
  ASSERT_EQ(got.gathered, want.gathered) << to_text(Schedule{list});
  ASSERT_EQ(got.freed, want.freed) << to_text(Schedule{list});
  ASSERT_EQ(got.reduced, want.reduced) << to_text(Schedule{list});
  ASSERT_EQ(got.peak, want.peak) << to_text(Schedule{list});
}

TEST(Replicas, AreSoundAndMoveTheBytesOfTheFormulas) {
  int built = 0;
  sweep({1, 2, 3, 8, 18}, {3072}, [&](const auto& config, const StepWork& work) {
    const Schedule schedule = build_schedule(config, work);  // which verifies
    ASSERT_EQ(schedule.size(), 1U);
    check_list(config, work, schedule[0]);
    ++built;
  });
  EXPECT_EQ(built, 5 * 3 * 4 * 18);
}

// How many ranks a gather or reduction is of is the layout's to say, and not the list's.
TEST(Replicas, AnyNumberOfThemHasOneList) {
  sweep({1, 3, 8}, {1}, [&](const auto& config, StepWork work) {
    const Schedule one = build_schedule(config, work);
    for (const int replicas : {2, 64, 3072}) {
      work.replicas = replicas;
      ASSERT_EQ(build_schedule(config, work), one) << replicas;
    }
  });
}

TEST(Replicas, AreSoundWithEveryListWrittenOut) {
  sweep({3}, {2, 3, 8}, [&](const auto& config, const StepWork& work) {
    const GroupTopology all = spread(config, work);
    ASSERT_EQ(schedule_faults(all.schedule, all.work), Faults{}) << to_text(all.schedule);
    ASSERT_EQ(parse_schedule(to_text(all.schedule)), all.schedule);
  });
  const GroupTopology many =
      spread(FullShard{}, {.chunks = 5, .microbatches = 2, .replicas = 3072});
  EXPECT_EQ(schedule_faults(many.schedule, many.work), Faults{});
}

TEST(Replicas, VerifyFindsEveryMissingAction) {
  sweep({3}, {2}, [&](const auto& config, StepWork work) {
    work.snapshot = true;
    const GroupTopology whole = spread(config, work);
    for (size_t i = 0; i < whole.schedule[0].size(); ++i) {
      Schedule cut = whole.schedule;
      cut[1].erase(cut[1].begin() + static_cast<int64_t>(i));
      ASSERT_FALSE(schedule_faults(cut, whole.work).empty()) << to_text(cut);
      // In both lists alike: no order between ranks gives it away.
      cut[0] = cut[1];
      ASSERT_FALSE(schedule_faults(cut, whole.work).empty()) << to_text(cut);
    }
  });
}

TEST(Replicas, VerifyFindsEveryRepeatedAction) {
  sweep({3}, {2}, [&](const auto& config, StepWork work) {
    work.snapshot = true;
    Schedule twice = build_schedule(config, work);
    const std::vector<Action> whole = twice[0];
    for (size_t i = 0; i < whole.size(); ++i) {
      twice[0] = whole;
      twice[0].insert(twice[0].begin() + static_cast<int64_t>(i), whole[i]);
      ASSERT_FALSE(schedule_faults(twice, work).empty()) << to_text(twice);
    }
  });
}

bool is_collective(const Action& a) {
  return a.kind == Kind::kGather || a.kind == Kind::kReduce;
}
bool is_compute(const Action& a) {
  return a.kind == Kind::kForward || a.kind == Kind::kForwardLight || a.kind == Kind::kBackward;
}

// Whether one rank may issue two neighbors in the other order.
bool commute(const Action& a, const Action& b, const std::vector<int>& owner) {
  for (const Action& x : {a, b}) {
    if (x.kind == Kind::kUpdate || x.kind == Kind::kSnapshot) return false;
  }
  if (is_collective(a) && is_collective(b)) return false;
  // A forward needs no backward, be it the recomputed one's or the next microbatch's.
  if (is_compute(a) && is_compute(b)) {
    return a.kind == Kind::kBackward && b.kind != Kind::kBackward;
  }
  // A reduction takes gradients, which values and forwards have no part in.
  const bool reduces = a.kind == Kind::kReduce || b.kind == Kind::kReduce;
  if (reduces && a.kind != Kind::kBackward) return true;
  return owner[a.chunk] != owner[b.chunk];
}

TEST(Replicas, VerifyFindsEverySwapThatMatters) {
  int found = 0;
  sweep({4}, {2}, [&](const auto& config, StepWork work) {
    work.snapshot = true;
    const GroupTopology whole = spread(config, work);
    const std::vector<Action>& list = whole.schedule[0];
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      const bool harmless = commute(list[i], list[i + 1], owners(work));
      Schedule swapped = whole.schedule;
      std::swap(swapped[1][i], swapped[1][i + 1]);
      const Faults faults = schedule_faults(swapped, whole.work);
      ASSERT_EQ(faults.empty(), harmless) << to_text(swapped);
      found += !faults.empty();
    }
  });
  EXPECT_GT(found, 1000);
}

Faults faults_of(std::string_view lists, const StepWork& work) {
  return schedule_faults(parse_schedule(lists), work);
}

TEST(Verify, TellsWhatIsWrongWithParameters) {
  const StepWork one{.chunks = 1}, two{.chunks = 2};
  EXPECT_TRUE(faults_of("0: F0.0 B0.0 A0.0 U G0", one).empty());
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 G0 A0 U", one), "parameters are not gathered"));
  EXPECT_TRUE(names(faults_of("0: G0 F0.0 G0 B0.0 X0 U", one), "gathered while it is there"));
  EXPECT_TRUE(names(faults_of("0: G0 F0.0 B0.0 U X0", one), "old values are gathered"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 U G0 X0", one), "the next step lacks chunk 0"));
  EXPECT_TRUE(names(faults_of("0: G0 F0.0 F1.0 B1.0 B0.0 X0 U", two),
                    "chunk 1 is not gathered, and others are"));
}

TEST(Verify, TellsWhatIsWrongWithReductions) {
  const StepWork work{.chunks = 1, .microbatches = 2, .replicas = 2};
  EXPECT_TRUE(faults_of("0: F0.0 B0.0 A0.0 F0.1 B0.1 A0.1 U", work).empty());
  EXPECT_TRUE(faults_of("0: F0.0 B0.0 F0.1 B0.1 A0 U", work).empty());
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 F0.1 B0.1 U", work), "runs on 2 ranks and is not"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 A0.0 F0.1 B0.1 A0 U", work), "a second reduction"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 A0.0 F0.1 B0.1 U", work),
                    "an update of chunk 0 before microbatch 1 is reduced"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 A0.1 F0.1 B0.1 A0.0 U", work),
                    "reduced before its last backward"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 A0.2 U", work), "no such microbatch"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 F0.1 B0.1 A0.0 A0.1 U", work),
                    "position 4 (A0.0): the sum holds microbatch 1 too"));
}

TEST(Verify, ASnapshotEndsTheStepThatAskedForIt) {
  const StepWork plain{.chunks = 1}, asked{.chunks = 1, .snapshot = true};
  EXPECT_TRUE(faults_of("0: F0.0 B0.0 U P", asked).empty());
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 U P", plain), "no snapshot was asked for"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 P U", asked), "a snapshot ends the step"));
  EXPECT_TRUE(names(faults_of("0: F0.0 B0.0 U", asked), "the snapshot is missing"));
}

TEST(Verify, TiedChunksGoByTheFirstsName) {
  const StepWork work{.chunks = 2, .replicas = 2, .tied = {{0, 1}}};
  EXPECT_TRUE(faults_of("0: G0 F0.0 F1.0 B1.0 B0.0 X0 A0 U0", work).empty());
  EXPECT_TRUE(names(faults_of("0: F0.0 F1.0 B1.0 A1 B0.0 A0 U", work), "named by chunk 0"));
  EXPECT_TRUE(names(faults_of("0: F0.0 F1.0 B1.0 A0 B0.0 U", work), "before its last backward"));
  EXPECT_TRUE(names(faults_of("0: F0.0 F1.0 B1.0 B0.0 A0 U1", work), "tied to"));
}

TEST(Verify, FindsCollectivesInAnotherOrder) {
  const StepWork work{.chunks = 2, .ranks = 2};
  const Faults faults = faults_of(
      "0: F0.0 F1.0 B1.0 B0.0 A1 A0 U\n"
      "1: F0.0 F1.0 B1.0 B0.0 A0 A1 U\n",
      work);
  EXPECT_TRUE(names(faults, "rank 0, position 4 (A1): waits for ever: others issue their gathers"));
  EXPECT_TRUE(names(faults, "rank 1, position 4 (A0): waits for ever"));
}

// Two stages of two replicas: what a pipeline with data parallelism will be made of.
TEST(Verify, AcceptsAPipelineOfReplicas) {
  const StepWork work{.chunks = 2, .ranks = 2, .replicas = 8};
  EXPECT_EQ(faults_of("0: F0.0 S1.0>1 R1.0<1 B0.0 A0 U G0\n"
                      "1: R1.0<0 F1.0 B1.0 S1.0>0 A1 U G1\n",
                      work),
            Faults{});
}

TEST(StepWork, OwnersFollowTies) {
  EXPECT_EQ(owners({.chunks = 5, .tied = {{1, 3}, {0, 1}}}), (std::vector<int>{0, 0, 2, 0, 4}));
}

TEST(StepWork, RefusesWhatCannotBe) {
  const auto refused = [](const StepWork& work) {
    EXPECT_THROW(build_schedule(DataParallel{}, work), Error);
  };
  refused({.chunks = 0});
  refused({.chunks = 2, .replicas = 0});
  refused({.chunks = 2, .ranks = 2});
  refused({.chunks = 2, .tied = {{1, 0}}});
  refused({.chunks = 2, .tied = {{0, 2}}});
  refused({.chunks = 3, .tied = {{0, 2}, {1, 2}}});
  EXPECT_THROW(build_schedule(FullShard{.prefetch = -1}, {.chunks = 2}), Error);
  EXPECT_THROW(build_schedule(FullShard{}, {.chunks = 2, .ranks = 2}), Error);
  EXPECT_THROW(build_schedule(Accumulate{}, {.chunks = 2, .replicas = 2}), Error);
}

}  // namespace
}  // namespace troupe
