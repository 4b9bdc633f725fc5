// What holds of every list of a pipeline: some 20,000 drawn ones, and spoiled ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "troupe/schedule/schedules.h"
#include "troupe/schedule/text.h"
#include "troupe/schedule/verify.h"
#include "troupe/testing/sanitized.h"

namespace troupe {
namespace {

using Random = std::mt19937_64;
int below(Random& random, int n) {
  return static_cast<int>(random() % static_cast<uint64_t>(n));
}

constexpr PipelineOrder kOrders[] = {PipelineOrder::kAuto, PipelineOrder::kGpipe,
                                     PipelineOrder::kZb1p, PipelineOrder::kZbv,
                                     PipelineOrder::kDualPipeV};

struct Drawn {
  ScheduleConfig config;
  StepWork work;
  int virtual_stages = 1;
};

// The most empty stages between two that are not.
int longest_gap(const StepWork& work) {
  int out = 0;
  for (size_t c = 1; c < work.stages.size(); ++c) {
    out = std::max(out, work.stages[c] - work.stages[c - 1] - 1);
  }
  return out;
}

// Stages of 0 to 2 chunks, and with `even` of one.
Drawn draw(Random& random, int most_ranks, int most_microbatches, bool even) {
  Drawn out;
  StepWork& work = out.work;
  const int ranks = work.ranks = 1 + below(random, most_ranks);
  work.order = kOrders[below(random, static_cast<int>(std::size(kOrders)))];
  const bool late = work.order == PipelineOrder::kZb1p;
  const bool vee =
      is_in_a_vee(work.order) || (work.order == PipelineOrder::kGpipe && below(random, 4) == 0);
  out.virtual_stages = late ? 1 : vee ? 2 : 1 + below(random, 2) * below(random, 4);
  for (int s = 0; s < ranks * out.virtual_stages; ++s) {
    work.stage_ranks.push_back(vee ? std::min(s, 2 * ranks - 1 - s) : s % ranks);
    const int chunks = even || s == 0 ? 1 : below(random, 3);
    for (int c = 0; c < chunks; ++c) work.stages.push_back(s);
  }
  work.chunks = static_cast<int>(work.stages.size());
  work.microbatches = 1 + below(random, 1 + below(random, most_microbatches));
  work.depth = 1 + below(random, 3) + longest_gap(work);
  work.training = below(random, 8) > 0;
  work.snapshot = work.training && below(random, 4) == 0;
  if (below(random, 3) == 0 && work.chunks > 1) work.tied.emplace_back(0, work.chunks - 1);
  const int pattern = even ? 0 : below(random, 4);  // none, none, all blocks, every second one
  for (int c = 1; pattern > 1 && c < work.chunks - 1; c += pattern - 1)
    work.recomputed.push_back(c);
  switch (below(random, 4)) {
    case 0: out.config = Accumulate{}; break;
    case 1: out.config = DataParallel{.sharded = below(random, 2) == 0}; break;
    default:
      out.config = FullShard{.prefetch = below(random, 4),
                             .reshard = below(random, 2) == 0,
                             .reduce_each = below(random, 2) == 0};
  }
  if (!std::holds_alternative<Accumulate>(out.config)) work.replicas = 2 + below(random, 7);
  return out;
}

uint64_t hash(uint64_t so_far, std::string_view text) {
  for (const char c : text) so_far = (so_far ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return so_far;
}

// Every chunk and microbatch goes forward and back once, and each border is crossed once each way.
void check_counts(const Drawn& d, const Schedule& schedule) {
  std::map<Kind, int64_t> counts;
  for (const std::vector<Action>& list : schedule) {
    for (const Action& a : list) ++counts[a.kind];
  }
  const StepWork& work = d.work;
  const std::vector<int> rank = chunk_ranks(work);
  const int64_t cells = int64_t{work.chunks} * work.microbatches;
  const int64_t light = std::ssize(work.recomputed) * work.microbatches;
  int64_t borders = 0;
  for (int c = 1; c < work.chunks; ++c) borders += rank[c] != rank[c - 1] ? work.microbatches : 0;
  ASSERT_EQ(counts[Kind::kForwardLight], work.training ? light : cells);
  ASSERT_EQ(counts[Kind::kForward], work.training ? cells : 0);
  ASSERT_EQ(counts[Kind::kBackward] + counts[Kind::kBackwardWeight], work.training ? cells : 0);
  ASSERT_EQ(counts[Kind::kBackwardInput], counts[Kind::kBackwardWeight]);
  ASSERT_EQ(counts[Kind::kSend], borders * (work.training ? 2 : 1));
  ASSERT_EQ(counts[Kind::kRecv], counts[Kind::kSend]);
}

// build_schedule() verifies: no fault, and no deadlock at the drawn depth.
TEST(Properties, TwentyThousandListsAreSoundAndTheSameOnEveryBuild) {
  Random random(1);
  uint64_t texts = 0xcbf29ce484222325;
  for (int i = 0; i < unless_sanitized(20000, 2000); ++i) {
    const Drawn d = draw(random, 16, 64, false);
    const Schedule schedule = build_schedule(d.config, d.work);
    check_counts(d, schedule);
    if (HasFatalFailure()) FAIL() << to_text(schedule);
    if (i % 16 == 0) texts = hash(texts, to_text(schedule));
  }
  EXPECT_EQ(texts, unless_sanitized(12589013984628610803U, 1726331052570472372U));
}

// The most stages that went forward and not yet back; a late W holds less than a graph.
int64_t peak_live(const std::vector<Action>& list) {
  int64_t live = 0, peak = 0;
  for (const Action& a : list) {
    live += a.kind == Kind::kForward ? 1 : 0;
    peak = std::max(peak, live);
    live -= a.kind == Kind::kBackward || a.kind == Kind::kBackwardInput ? 1 : 0;
  }
  return peak;
}

// The most weights' halves that are owed between two actions, but between an I and its neighbor.
int64_t peak_owed(const std::vector<Action>& list) {
  int64_t owed = 0, peak = 0;
  for (const Action& a : list) {
    if (a.kind == Kind::kForward) peak = std::max(peak, owed);
    owed += a.kind == Kind::kBackwardInput ? 1 : a.kind == Kind::kBackwardWeight ? -1 : 0;
  }
  return peak;
}

int bound(const StepWork& work, int virtual_stages, int rank) {
  const int all = work.microbatches * virtual_stages, later = work.ranks - 1 - rank;
  if (work.order == PipelineOrder::kGpipe) return all;
  if (work.order == PipelineOrder::kZbv) return std::min(all, 2 * work.ranks);
  if (work.order == PipelineOrder::kDualPipeV) return std::min(all, 2 * work.ranks + 1);
  if (virtual_stages == 1) return std::min(all, later + 1);
  return std::min(all, 2 * later + (virtual_stages - 1) * work.ranks + 1);
}

TEST(Properties, NoRankHoldsMoreGraphsThanItsOrderPromises) {
  Random random(2);
  for (int i = 0; i < unless_sanitized(3000, 300); ++i) {
    Drawn d = draw(random, 16, 64, true);
    d.work.training = true, d.work.tied = {};
    const Schedule schedule = build_schedule(d.config, d.work);
    for (int rank = 0; rank < d.work.ranks; ++rank) {
      ASSERT_LE(peak_live(schedule[static_cast<size_t>(rank)]),
                bound(d.work, d.virtual_stages, rank))
          << to_text(schedule);
      if (is_in_a_vee(d.work.order)) continue;
      ASSERT_LE(peak_owed(schedule[static_cast<size_t>(rank)]), rank);
    }
  }
}

// Runs lists on paper, one action of a rank drawn after the other. What it knows of them is what an
// executor does: it keeps outputs, graphs and gradients, and asks for them.
class Paper {
 public:
  Paper(const Schedule& schedule, const StepWork& work) : schedule_(schedule), work_(work) {
    ranks_.resize(schedule.size());
  }
  // Whether all lists end with every gradient of every chunk made, each by its own inputs.
  bool run(Random& random) {
    std::vector<size_t> open;
    for (size_t r = 0; r < ranks_.size(); ++r) open.push_back(r);
    while (!open.empty()) {
      std::shuffle(open.begin(), open.end(), random);
      bool moved = false;
      for (size_t i = 0; i < open.size() && !moved; ++i) moved = advance(open[i]);
      if (!moved || wrong_) return false;
      std::erase_if(open, [&](size_t r) { return ranks_[r].at == schedule_[r].size(); });
    }
    return !wrong_ && std::ssize(done_) == int64_t{work_.chunks} * work_.microbatches;
  }

 private:
  using Cell = std::pair<int, int>;
  struct Rank {
    size_t at = 0;
    std::set<Cell> outputs, graphs, gradients;       // gradients: of a chunk's input
    std::set<Cell> owed;                             // halves of weights
    std::map<Cell, std::pair<int, size_t>> awaited;  // channel, number
    bool updated = false;
  };
  struct Channel {
    std::vector<Cell> sent, posted;
    size_t received() const { return std::min(sent.size(), posted.size()); }
  };

  Channel& channel(int from, int to, bool gradients) {
    return channels_[(from * work_.ranks + to) * 2 + (gradients ? 1 : 0)];
  }
  bool runs(size_t rank, int chunk) const {
    return chunk_ranks(work_)[static_cast<size_t>(chunk)] == static_cast<int>(rank);
  }

  bool advance(size_t r) {
    Rank& rank = ranks_[r];
    if (rank.at == schedule_[r].size()) return false;
    const Action& a = schedule_[r][rank.at];
    const int self = static_cast<int>(r);
    const Cell cell{a.chunk, a.microbatch}, above{a.chunk + 1, a.microbatch};
    if (a.kind == Kind::kSend) {
      const bool gradient = runs(r, a.chunk);
      Channel& c = channel(self, a.peer, gradient);
      if (c.sent.size() - c.received() >= static_cast<size_t>(work_.depth)) return false;
      wrong_ |= gradient ? !rank.gradients.contains(cell)
                         : !rank.outputs.contains({a.chunk - 1, a.microbatch});
      c.sent.push_back(cell);
    }
    if (a.kind == Kind::kRecv) {
      Channel& c = channel(a.peer, self, !runs(r, a.chunk));
      c.posted.push_back(cell);
      const int key = static_cast<int>((a.peer * work_.ranks + self) * 2 + !runs(r, a.chunk));
      wrong_ |= !rank.awaited.emplace(cell, std::pair{key, c.posted.size() - 1}).second;
    }
    const bool forward = a.kind == Kind::kForward || a.kind == Kind::kForwardLight;
    const bool half = a.kind == Kind::kBackwardInput;
    const bool back = a.kind == Kind::kBackward || half;
    const auto awaited = rank.awaited.find(forward ? cell : above);
    if ((forward || back) && awaited != rank.awaited.end()) {
      const Channel& c = channels_[awaited->second.first];
      const size_t number = awaited->second.second;
      if (number >= c.received()) return false;
      wrong_ |= c.sent[number] != c.posted[number];
    }
    if (forward || back) wrong_ |= !runs(r, a.chunk) || rank.updated;
    if (forward) {
      const bool fed = a.chunk == 0 || awaited != rank.awaited.end() ||
                       rank.outputs.contains({a.chunk - 1, a.microbatch});
      wrong_ |= !fed || (a.kind == Kind::kForwardLight && rank.outputs.contains(cell));
      rank.outputs.insert(cell);
      if (a.kind == Kind::kForward) wrong_ |= !rank.graphs.insert(cell).second;
    }
    if (back) {
      const bool fed = above.first == work_.chunks || awaited != rank.awaited.end() ||
                       rank.gradients.contains(above);
      wrong_ |= !fed || rank.graphs.erase(cell) == 0;
      rank.gradients.insert(cell);
    }
    if (half) wrong_ |= !rank.owed.insert(cell).second;
    if (a.kind == Kind::kBackwardWeight) wrong_ |= rank.owed.erase(cell) == 0 || rank.updated;
    if (a.kind == Kind::kBackward || a.kind == Kind::kBackwardWeight) {
      wrong_ |= !done_.insert(cell).second;
    }
    if (a.kind == Kind::kUpdate) wrong_ |= std::exchange(rank.updated, true);
    ++rank.at;
    return true;
  }

  const Schedule& schedule_;
  const StepWork& work_;
  std::vector<Rank> ranks_;
  std::map<int, Channel> channels_;
  std::set<Cell> done_;
  bool wrong_ = false;
};

TEST(Properties, ListsEndUnderRandomSpeeds) {
  Random random(3);
  for (int i = 0; i < unless_sanitized(40, 8); ++i) {
    Drawn d = draw(random, 6, 12, false);
    d.work.training = true;
    const Schedule schedule = build_schedule(Accumulate{}, [&] {
      d.work.replicas = 1;
      return d.work;
    }());
    for (int speed = 0; speed < 100; ++speed) {
      ASSERT_TRUE(Paper(schedule, d.work).run(random)) << to_text(schedule);
    }
  }
}

TEST(Properties, SpoiledListsAreFoundOrAsRight) {
  Random random(4);
  constexpr int kLists = unless_sanitized(4000, 800);
  int right = 0, found = 0;
  for (int i = 0; i < kLists; ++i) {
    Drawn d = draw(random, 4, 6, false);
    d.work.training = true;
    const Schedule whole = build_schedule(d.config, d.work);
    Schedule spoiled = whole;
    std::vector<Action>& list = spoiled[static_cast<size_t>(below(random, d.work.ranks))];
    const int at = below(random, static_cast<int>(list.size()));
    const int how = below(random, 4);
    if (how == 0) list.erase(list.begin() + at);
    if (how == 1) list.insert(list.begin() + at, Action(list[static_cast<size_t>(at)]));
    if (how == 2 && at > 0)
      std::swap(list[static_cast<size_t>(at)], list[static_cast<size_t>(at) - 1]);
    if (how == 3) list[static_cast<size_t>(at)].peer = below(random, d.work.ranks + 1);
    if (spoiled == whole) continue;
    const bool sound = schedule_faults(spoiled, d.work).empty();
    found += !sound;
    if (!sound) continue;
    ++right;
    // Only an order can be as right, a peer that the action does not have, or a list that has lost
    // its one gather: replicas that are not sharded.
    const bool no_peer = how == 3 && list[static_cast<size_t>(at)].kind != Kind::kSend &&
                         list[static_cast<size_t>(at)].kind != Kind::kRecv;
    const bool replicas = how == 0 && std::ranges::none_of(list, [](const Action& a) {
                            return a.kind == Kind::kGather || a.kind == Kind::kFree;
                          });
    ASSERT_TRUE(how == 2 || no_peer || replicas) << to_text(spoiled) << to_text(whole);
    ASSERT_TRUE(Paper(spoiled, d.work).run(random)) << to_text(spoiled);
  }
  EXPECT_GT(found, kLists / 2);
  EXPECT_GT(right, kLists / 20);
}

}  // namespace
}  // namespace troupe
