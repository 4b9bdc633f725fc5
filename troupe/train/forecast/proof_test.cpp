// The proof of a step (schedule/prove.h) finds every planted fault, holds for the layouts of up to 8
// ranks, and decides by one run what every order of a small world does.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/schedule/interleavings.h"
#include "troupe/schedule/prove.h"
#include "troupe/schedule/schedules.h"
#include "troupe/schedule/text.h"
#include "troupe/train/forecast/mesh_world.h"
#include "troupe/train/forecast/proof_cases.h"

namespace troupe {
namespace {

using Random = std::mt19937_64;
int below(Random& random, int n) {
  return static_cast<int>(random() % static_cast<uint64_t>(n));
}

constexpr int64_t kEach = 61;  // `./dev prove` takes all

TEST(Proof, EveryLayoutOfUpToEightRanksIsProven) {
  int64_t proven = 0;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for_each_proof_case(ranks, kEach, [&](const ProofCase& c) {
      const Proof proof = prove({c.schedule}, c.work, c.world);
      EXPECT_EQ(proof.faults, std::vector<std::string>{}) << c.name;
      EXPECT_LE(proof.capacity, 1) << c.name;
      ++proven;
    });
  }
  EXPECT_GT(proven, 3000);
}

// Stages of no, one or several units, a table that up to three of them read, evaluation alone.
StepWork drawn_work(Random& random, int replicas) {
  constexpr PipelineOrder kOrders[] = {PipelineOrder::kAuto, PipelineOrder::kGpipe,
                                       PipelineOrder::kZb1p, PipelineOrder::kZbv,
                                       PipelineOrder::kDualPipeV};
  StepWork work;
  const int ranks = work.ranks = 1 + below(random, 4);
  work.order = kOrders[below(random, static_cast<int>(std::size(kOrders)))];
  const bool vee = is_in_a_vee(work.order);
  const int each = vee ? 2 : work.order == PipelineOrder::kZb1p ? 1 : 1 + below(random, 3);
  int gap = 0, longest = 0;
  for (int s = 0; s < ranks * each; ++s) {
    work.stage_ranks.push_back(vee ? std::min(s, 2 * ranks - 1 - s) : s % ranks);
    const int units = s == 0 ? 1 : below(random, 3);
    gap = units == 0 ? gap + 1 : 0;
    longest = std::max(longest, gap);
    work.stages.insert(work.stages.end(), static_cast<size_t>(units), s);
  }
  work.chunks = static_cast<int>(work.stages.size());
  work.depth = 2 + longest;  // as with_stages()
  work.microbatches = 1 + below(random, 6);
  work.training = below(random, 8) > 0;
  work.replicas = replicas;
  for (int c = std::max(1, work.chunks - 2); below(random, 2) == 0 && c < work.chunks; ++c) {
    work.tied.emplace_back(0, c);
  }
  const int again = below(random, 3);
  for (int c = 1; again > 0 && c + 1 < work.chunks; c += again) work.recomputed.push_back(c);
  return work;
}

TEST(Proof, DrawnStagesTablesAndShardsAreProven) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const int tensor = 1 + below(random, 2), data = 1 + below(random, 3);
    const StepWork work = drawn_work(random, tensor * data);
    const int share = below(random, 3);
    const StateSharing sharing{.full = share == 2,
                               .zero1 = share == 1,
                               .prefetch = below(random, 4),
                               .reshard = below(random, 2) == 0};
    const Schedule schedule = build_schedule(config_of(sharing, work), work);
    const ProcessMesh mesh(int64_t{work.ranks} * tensor * data,
                           {.tensor = tensor,
                            .pipeline = work.ranks,
                            .expert = below(random, 2) == 0 ? tensor * data : 1,
                            .shard = share == 0 ? 1 : 0});
    MeshWorld parts{.whole_state = share == 0};
    for (int c = 0; c < work.chunks; ++c) {
      const bool experts = c > 0 && below(random, 3) > 0;
      parts.units.push_back({.attention = c > 0, .experts = experts, .sums_over_all = experts});
    }
    for (int d = 0; d < data; ++d) {
      std::vector<int64_t>& rows = parts.rows.emplace_back();
      for (int m = 0; m < work.microbatches; ++m) rows.push_back(below(random, 4));
    }
    const Proof proof = prove({schedule}, work, world_of(mesh, work, parts));
    ASSERT_EQ(proof.faults, std::vector<std::string>{}) << to_text(mesh) << to_text(schedule);
  }
}

// What prove.h argues: one maximal run ends as all do, also where it does not end.
TEST(Proof, EveryOrderOfASmallWorldEndsAsTheOneRun) {
  int64_t explored = 0, states = 0, stuck = 0;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for_each_proof_case(ranks, 53, [&](const ProofCase& c) {
      WorldEvents events = world_events({c.schedule}, c.work, c.world);
      for (const bool spoiled : {false, true}) {
        if (spoiled) std::swap(events.ranks[0], events.ranks[1]);
        for (const int room : {0, 1, 2}) {
          const Interleavings all = interleavings(events, room, 1000);
          if (!all.whole) continue;
          WorldRun one(events, room);
          one.go_on();
          EXPECT_EQ(all.ends, 1) << c.name;
          EXPECT_EQ(all.all_end, one.has_ended()) << c.name;
          ++explored;
          states += all.states;
          stuck += all.all_end ? 0 : 1;
        }
      }
    });
  }
  EXPECT_GT(explored, 200);
  EXPECT_GT(states, 30000);
  EXPECT_GT(stuck, 30);
}

// The first case of the ranks whose name holds all of these.
ProofCase case_of(int ranks, const std::vector<std::string>& words) {
  ProofCase out;
  for_each_proof_case(ranks, 1, [&](const ProofCase& c) {
    const bool all = std::ranges::all_of(
        words, [&](const std::string& word) { return c.name.find(word) != std::string::npos; });
    if (all && out.name.empty()) out = c;
  });
  return out;
}

bool tells(const Proof& proof, const std::string& words) {
  return std::ranges::any_of(proof.faults, [&](const std::string& fault) {
    return fault.find(words) != std::string::npos;
  });
}

// global_loss summed [sequences, E + 1] over all replicas until 66af6c19: with as many sequences on
// each nothing was to see, and where a replica had an empty microbatch the ranks ended by SIGABRT.
TEST(Proof, TheOldSumOfGlobalLossIsRefused) {
  const std::vector<std::string> layout = {"tensor 1, context 1, pipeline 1, expert 2",
                                           "microbatches 3", "zero1"};
  for (const std::string rows : {"3 even", "3 fewer"}) {
    ProofCase c = case_of(2, {layout[0], layout[1] + rows.substr(1), layout[2]});
    ASSERT_FALSE(c.name.empty());
    EXPECT_EQ(prove({c.schedule}, c.work, c.world).faults, std::vector<std::string>{});
    for (StepWorld::Unit& unit : c.world.units) {
      for (UnitCall& call : unit.calls) {
        if (call.role == GroupRole::kStage) call.size = UnitCall::kRows;
      }
    }
    const Proof old = prove({c.schedule}, c.work, c.world);
    EXPECT_EQ(old.faults.empty(), rows == "3 even");
    if (rows == "3 even") continue;
    EXPECT_TRUE(tells(old, "collectives of ranks 0 1, number")) << old.faults.front();
    EXPECT_TRUE(tells(old, "forward of 1.1, 0; rank 0 has forward of 1.1, 4"))
        << old.faults.front();
  }
}

// A rank that has one microbatch fewer executes a shorter list: its sums meet others of its group.
TEST(Proof, UnequalNumbersOfMicrobatchesAreRefused) {
  const std::string layout = "tensor 1, context 1, pipeline 1, expert 2";
  const ProofCase three = case_of(2, {layout, "microbatches 3 even", "none"});
  const ProofCase two = case_of(2, {layout, "microbatches 2 even", "none"});
  const Proof proof = prove({three.schedule, two.schedule}, three.work, three.world);
  EXPECT_TRUE(tells(proof, "waits for ever")) << proof.faults.size();
  EXPECT_TRUE(tells(proof, "collectives of ranks 0 1, number")) << proof.faults.size();
  EXPECT_THROW(require_proven({three.schedule, two.schedule}, three.work, three.world), Error);
}

// Groups that leave out a replica, or have one twice.
TEST(Proof, GroupsThatDoNotReachAllHoldersAreRefused) {
  ProofCase c =
      case_of(4, {"pipeline 1, expert 1", "tensor 1, context 1", "microbatches 1", "none"});
  c.world.groups[static_cast<size_t>(c.world.ranks[0].of(GroupRole::kWholeReplicas))] = {0, 1, 2};
  c.world.ranks[3].group[static_cast<size_t>(GroupRole::kWholeReplicas)] = -1;
  EXPECT_TRUE(tells(prove({c.schedule}, c.work, c.world),
                    "sums over the replicas of whole parameters reach ranks 0 1 2; those that hold "
                    "the same are 0 1 2 3"));
}

// Real lists of several kinds, to be spoiled.
std::vector<ProofCase> samples() {
  std::map<std::string, ProofCase> chosen;
  const auto take = [&](const ProofCase& c) {
    const bool three = c.work.microbatches == 3 && c.world.ranks.size() == 4;
    const bool uneven = c.name.find("uneven") != std::string::npos;
    if (!three || !uneven || c.work.ranks != 2) return;
    const bool none = c.name.find(", none,") != std::string::npos;
    const bool full = c.name.find(", full,") != std::string::npos;
    if (!none && !full) return;
    if (c.work.tied.empty() == c.work.recomputed.empty()) return;
    const std::string key =
        to_text(c.work.order) + (none ? " none" : " full") + (c.work.tied.empty() ? "" : " tied");
    // Replicas: there is something to reduce.
    if (c.world.ranks[0].data == c.world.ranks[1].data) return;
    chosen.try_emplace(key, c);
  };
  for_each_proof_case(4, 1, take);
  std::vector<ProofCase> out;
  for (auto& [key, c] : chosen) out.push_back(std::move(c));
  return out;
}

bool is_found(const ProofCase& c, const std::vector<Schedule>& lists) {
  try {
    return !prove(lists, c.work, c.world).faults.empty();
  } catch (const Error&) {  // a chunk, peer or microbatch that is not there
    return true;
  }
}

// A change of one list that is a fault wherever it is possible; false: it is not possible there.
using List = std::vector<Action>;
using Fault = std::function<bool(List&, size_t at)>;

bool is_backward(const Action& a) {
  return a.kind == Kind::kBackward || a.kind == Kind::kBackwardInput;
}
bool uses(const Action& a, int chunk) {
  return a.chunk == chunk && (is_backward(a) || a.kind == Kind::kForward);
}

Fault dropped(Kind kind) {
  return [=](List& list, size_t at) {
    if (list[at].kind != kind) return false;
    list.erase(list.begin() + static_cast<int64_t>(at));
    return true;
  };
}
Fault doubled(Kind kind) {
  return [=](List& list, size_t at) {
    if (list[at].kind != kind) return false;
    list.insert(list.begin() + static_cast<int64_t>(at), Action(list[at]));
    return true;
  };
}
Fault edited(Kind kind, const std::function<void(Action&)>& edit) {
  return [=](List& list, size_t at) {
    if (list[at].kind != kind) return false;
    const Action before = list[at];
    edit(list[at]);
    return list[at] != before;
  };
}
// The next one of the kind for which `other` holds changes places with it.
Fault swapped(Kind kind, const std::function<bool(const Action&, const Action&)>& other) {
  return [=](List& list, size_t at) {
    if (list[at].kind != kind) return false;
    for (size_t i = at + 1; i < list.size(); ++i) {
      if (list[i].kind != kind || !other(list[at], list[i])) continue;
      std::swap(list[at], list[i]);
      return true;
    }
    return false;
  };
}
// Behind the next action for which `behind` holds.
Fault late(Kind kind, const std::function<bool(const Action&, const Action&)>& behind) {
  return [=](List& list, size_t at) {
    if (list[at].kind != kind) return false;
    for (size_t i = at + 1; i < list.size(); ++i) {
      if (!behind(list[at], list[i])) continue;
      const auto from = list.begin() + static_cast<int64_t>(at);
      std::rotate(from, from + 1, list.begin() + static_cast<int64_t>(i) + 1);
      return true;
    }
    return false;
  };
}
// Before the last action before it for which `before` holds.
Fault early(Kind kind, const std::function<bool(const Action&, const Action&)>& before) {
  return [=](List& list, size_t at) {
    if (list[at].kind != kind) return false;
    for (size_t i = at; i-- > 0;) {
      if (!before(list[at], list[i])) continue;
      const auto first = list.begin() + static_cast<int64_t>(i);
      const auto last = list.begin() + static_cast<int64_t>(at);
      std::rotate(first, last, last + 1);
      return true;
    }
    return false;
  };
}

bool same_channel(const Action& a, const Action& b) {
  return a.peer == b.peer && a.microbatch != b.microbatch && a.chunk == b.chunk;
}
bool same_cell(const Action& a, const Action& b) {
  return a.chunk == b.chunk && a.microbatch == b.microbatch;
}

std::map<std::string, Fault> list_faults() {
  std::map<std::string, Fault> out;
  for (const Kind kind : {Kind::kSend, Kind::kRecv, Kind::kForward, Kind::kBackward,
                          Kind::kBackwardInput, Kind::kBackwardWeight, Kind::kReduce, Kind::kGather,
                          Kind::kFree, Kind::kUpdate, Kind::kForwardLight}) {
    out["left out: " + to_text(kind)] = dropped(kind);
    out["done twice: " + to_text(kind)] = doubled(kind);
  }
  const auto next_microbatch = [](Action& a) { a.microbatch = (a.microbatch + 1) % 3; };
  for (const Kind kind : {Kind::kSend, Kind::kRecv, Kind::kForward, Kind::kBackward,
                          Kind::kBackwardInput, Kind::kBackwardWeight}) {
    out["another microbatch: " + to_text(kind)] = edited(kind, next_microbatch);
    out["another chunk: " + to_text(kind)] = edited(kind, [](Action& a) { ++a.chunk; });
  }
  for (const Kind kind : {Kind::kSend, Kind::kRecv}) {
    out["another peer: " + to_text(kind)] = edited(kind, [](Action& a) { a.peer = 1 - a.peer; });
    out["no such peer: " + to_text(kind)] = edited(kind, [](Action& a) { a.peer = 2; });
    out["swapped on its channel: " + to_text(kind)] = swapped(kind, same_channel);
  }
  out["reduced chunks in another order"] =
      swapped(Kind::kReduce, [](const Action& a, const Action& b) { return a.chunk != b.chunk; });
  out["gathered in another order"] =
      swapped(Kind::kGather, [](const Action& a, const Action& b) { return a.chunk != b.chunk; });
  out["a receive behind its use"] = late(Kind::kRecv, [](const Action& r, const Action& a) {
    const bool forward = a.kind == Kind::kForward || a.kind == Kind::kForwardLight;
    return (forward && same_cell(r, a)) ||
           (is_backward(a) && a.chunk + 1 == r.chunk && a.microbatch == r.microbatch);
  });
  out["a send before its value"] = early(Kind::kSend, [](const Action& s, const Action& a) {
    const bool forward = a.kind == Kind::kForward || a.kind == Kind::kForwardLight;
    return (is_backward(a) && same_cell(s, a)) ||
           (forward && a.chunk + 1 == s.chunk && a.microbatch == s.microbatch);
  });
  out["a backward before its forward"] = early(
      Kind::kBackward,
      [](const Action& b, const Action& a) { return a.kind == Kind::kForward && same_cell(a, b); });
  out["freed before its use"] =
      early(Kind::kFree, [](const Action& x, const Action& a) { return uses(a, x.chunk); });
  out["gathered behind its use"] =
      late(Kind::kGather, [](const Action& g, const Action& a) { return uses(a, g.chunk); });
  out["reduced before its gradient"] = early(Kind::kReduce, [](const Action& r, const Action& a) {
    return a.chunk == r.chunk && (a.kind == Kind::kBackward || a.kind == Kind::kBackwardWeight);
  });
  out["reduced behind the update"] =
      late(Kind::kReduce, [](const Action&, const Action& a) { return a.kind == Kind::kUpdate; });
  return out;
}

// The same order on all replicas is another one, and no fault.
bool may_be_on_all(const std::string& fault) {
  return !fault.ends_with("in another order");
}

// In every place of every list of the samples, on one replica alone and on both.
TEST(Proof, EachOfTheFaultsPlantedInListsIsFound) {
  std::map<std::string, int> planted;
  int found = 0, all = 0;
  for (const ProofCase& c : samples()) {
    ASSERT_EQ(prove({c.schedule}, c.work, c.world).faults, std::vector<std::string>{}) << c.name;
    for (const auto& [name, fault] : list_faults()) {
      for (size_t rank = 0; rank < c.schedule.size(); ++rank) {
        for (size_t at = 0; at < c.schedule[rank].size(); ++at) {
          Schedule spoiled = c.schedule;
          if (!fault(spoiled[rank], at) || spoiled == c.schedule) continue;
          for (const bool on_all : {false, true}) {
            if (on_all && !may_be_on_all(name)) continue;
            ++all;
            ++planted[name];
            std::vector<Schedule> lists = {spoiled};
            if (!on_all) lists.insert(lists.begin(), c.schedule);
            const bool is = is_found(c, lists);
            found += is ? 1 : 0;
            EXPECT_TRUE(is) << name << " on rank " << rank << ", position " << at
                            << (on_all ? " of all" : " of one replica") << ": " << c.name;
          }
        }
      }
    }
  }
  EXPECT_EQ(found, all);
  EXPECT_EQ(planted.size(), 49U);
  EXPECT_GT(all, 10000);
}

// Of what the executor makes of an action, which no list shows.
using EventFault = std::function<bool(std::vector<Event>&, size_t at)>;

EventFault without(Event::Kind kind) {
  return [=](std::vector<Event>& events, size_t at) {
    if (events[at].kind != kind) return false;
    events.erase(events.begin() + static_cast<int64_t>(at));
    return true;
  };
}
EventFault twice(Event::Kind kind) {
  return [=](std::vector<Event>& events, size_t at) {
    if (events[at].kind != kind) return false;
    events.insert(events.begin() + static_cast<int64_t>(at), Event(events[at]));
    return true;
  };
}
EventFault larger(Event::Kind kind) {
  return [=](std::vector<Event>& events, size_t at) {
    if (events[at].kind != kind || events[at].size < 0) return false;
    ++events[at].size;
    return true;
  };
}
// Changes places with the one before it of the rank that is another.
EventFault before_other(Event::Kind kind, Event::Kind other) {
  return [=](std::vector<Event>& events, size_t at) {
    if (events[at].kind != kind) return false;
    for (size_t i = at; i-- > 0;) {
      if (events[i].kind != other || events[i].what != events[at].what) continue;
      const auto first = events.begin() + static_cast<int64_t>(i);
      const auto last = events.begin() + static_cast<int64_t>(at);
      std::rotate(first, last, last + 1);
      return true;
    }
    return false;
  };
}

std::map<std::string, EventFault> event_faults() {
  std::map<std::string, EventFault> out = {
      {"a collective left out", without(Event::kMeet)},
      {"a collective twice", twice(Event::kMeet)},
      {"a collective of another size", larger(Event::kMeet)},
      {"a message left out", without(Event::kSend)},
      {"a message twice", twice(Event::kSend)},
      {"a message of another size", larger(Event::kSend)},
      {"a receive left out", without(Event::kPost)},
      {"a receive of another size", larger(Event::kPost)},
      {"a value that is never waited for", without(Event::kAwait)},
      {"a value that is never made", without(Event::kMake)},
      {"a value made twice", twice(Event::kMake)},
      {"a value that is left", without(Event::kDrop)},
      {"a value released twice", twice(Event::kDrop)},
      {"a value released before it is read", before_other(Event::kDrop, Event::kRead)},
      {"a gradient left out", without(Event::kAdd)},
      {"a gradient added twice", twice(Event::kAdd)},
      {"a sum that is not reduced", without(Event::kFold)},
      {"a sum that is not over replicas", without(Event::kWhole)},
      {"a sum over replicas twice", twice(Event::kWhole)},
  };
  return out;
}

TEST(Proof, EachOfTheFaultsPlantedInTheExecutorIsFound) {
  std::map<std::string, int> planted;
  for (const ProofCase& c : samples()) {
    const WorldEvents whole = world_events({c.schedule}, c.work, c.world);
    for (const auto& [name, fault] : event_faults()) {
      for (size_t rank = 0; rank < whole.ranks.size(); ++rank) {
        for (size_t at = 0; at < whole.ranks[rank].size(); ++at) {
          std::vector<Event> events = whole.ranks[rank];
          if (!fault(events, at) || events == whole.ranks[rank]) continue;
          WorldEvents spoiled = whole;
          spoiled.ranks[rank] = std::move(events);
          ++planted[name];
          EXPECT_FALSE(prove(spoiled, c.work.depth).faults.empty())
              << name << " on rank " << rank << ", event " << at << ": " << c.name;
        }
      }
    }
  }
  EXPECT_EQ(planted.size(), 19U);
}

}  // namespace
}  // namespace troupe
