#include "troupe/schedule/verify.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "troupe/core/check.h"
#include "troupe/schedule/deadlock.h"
#include "troupe/schedule/text.h"

namespace troupe {
namespace {

bool computes(Kind kind) {
  return kind == Kind::kForwardLight || kind == Kind::kForward || kind == Kind::kBackward ||
         kind == Kind::kBackwardInput || kind == Kind::kBackwardWeight;
}
bool moves(Kind kind) {
  return kind == Kind::kSend || kind == Kind::kRecv;
}

// What is known of one chunk and microbatch on one rank so far.
struct Progress {
  uint8_t light = 0, forward = 0, backward = 0, input_half = 0, weight_half = 0;
  bool received = false;  // its input, or the gradient of it
  bool has_output() const { return light + forward > 0; }
  bool has_input_gradient() const { return backward + input_half > 0; }
  bool is_done() const { return backward + weight_half > 0; }
};

// What is known of a chunk on one rank, or of the parameters that go by its name.
struct ChunkState {
  bool own = false;
  int done = 0;  // microbatches
  bool updated = false;
  // State of the parameters.
  std::vector<int> group = {};  // chunks of this rank that use them
  bool gathered = false, present = false, reduces = false;
  bool resident = false;  // gathered after the update, for the next step
  int open = 0;           // microbatches that have added to the gradient since it was reduced
};

struct Sum {
  bool open = false, reduced = false;
};

// Walks one rank's list.
class RankCheck {
 public:
  RankCheck(const Schedule& schedule, const StepWork& work, int rank, const std::vector<int>& owner,
            std::vector<std::string>& faults)
      : list_(schedule[static_cast<size_t>(rank)]),
        work_(work),
        rank_(rank),
        owner_(owner),
        faults_(faults),
        chunks_(owner.size()),
        cells_(owner.size() * static_cast<size_t>(work.microbatches)),
        sums_(cells_.size()) {
    bool updated = false;
    for (const Action& action : list_) {
      const bool whole = action.chunk < 0 || !work.updates_in_backward;
      if (action.kind == Kind::kUpdate && whole) updated = true;
      if (!is_chunk(action.chunk)) continue;
      ChunkState& c = chunks_[action.chunk];
      if (computes(action.kind)) c.own = true;
      if (action.kind == Kind::kGather) c.gathered = true, gathers_ = true;
      if (action.kind == Kind::kGather && updated) c.present = c.resident = true;
      if (action.kind == Kind::kReduce) c.reduces = true;
    }
    for (int c = 0; c < work.chunks; ++c) {
      if (chunks_[c].own) chunks_[owner_[c]].group.push_back(c);
    }
  }

  void run() {
    for (at_ = 0; at_ < list_.size(); ++at_) {
      const Action& action = list_[at_];
      if (!check_range(action)) continue;
      if (computes(action.kind)) check_compute(action);
      if (action.beside) check_beside(action);
      if (moves(action.kind)) check_transfer(action);
      if (action.kind == Kind::kGather) check_gather(action.chunk);
      if (action.kind == Kind::kFree) check_free(action.chunk);
      if (action.kind == Kind::kReduce) check_reduce(action);
      if (action.kind == Kind::kUpdate) check_update(action.chunk);
      if (action.kind == Kind::kSnapshot) check_snapshot();
    }
    check_end();
  }

  bool runs(int chunk) const { return chunks_[chunk].own; }
  bool reduces(int owner) const { return chunks_[owner].reduces; }

 private:
  void fault(const std::string& what) {
    std::string place = "rank " + std::to_string(rank_);
    if (at_ < list_.size()) {
      place += ", position " + std::to_string(at_) + " (" + to_text(list_[at_]) + ")";
    }
    faults_.push_back(place + ": " + what);
  }

  bool is_chunk(int chunk) const { return 0 <= chunk && chunk < work_.chunks; }
  bool runs_here(int chunk) const { return is_chunk(chunk) && chunks_[chunk].own; }
  size_t cell(int chunk, int microbatch) const {
    return static_cast<size_t>(chunk) * static_cast<size_t>(work_.microbatches) +
           static_cast<size_t>(microbatch);
  }

  bool check_range(const Action& action) {
    const size_t before = faults_.size();
    for (const int position : action.after) {
      if (position < 0 || position >= static_cast<int>(at_)) {
        fault("waits for position " + std::to_string(position) + ", which is not before it");
      }
    }
    const bool needs_cell = computes(action.kind) || moves(action.kind);
    const bool needs_chunk = needs_cell || action.kind == Kind::kGather ||
                             action.kind == Kind::kFree || action.kind == Kind::kReduce;
    if (action.chunk >= work_.chunks || (needs_chunk && action.chunk < 0)) fault("no such chunk");
    if (action.microbatch >= work_.microbatches || (needs_cell && action.microbatch < 0)) {
      fault("no such microbatch");
    }
    const bool of_parameters = needs_chunk && !needs_cell;
    if (of_parameters && is_chunk(action.chunk)) check_group(action);
    if (moves(action.kind) && !is_transfer(action)) fault("no such transfer");
    check_stage(action);
    check_training(action.kind);
    return faults_.size() == before;
  }

  void check_group(const Action& action) {
    const int owner = owner_[action.chunk];
    if (owner != action.chunk) fault("is named by chunk " + std::to_string(owner) + ", its tie");
    if (chunks_[owner].group.empty()) fault("the rank does not run this chunk");
  }

  // One end of a transfer runs the chunk, the other the one before it.
  bool is_transfer(const Action& action) const {
    const bool is_peer = 0 <= action.peer && action.peer < work_.ranks && action.peer != rank_;
    return is_peer && action.chunk > 0 && runs_here(action.chunk) != runs_here(action.chunk - 1);
  }

  void check_stage(const Action& action) {
    if (work_.stages.empty() || !is_chunk(action.chunk)) return;
    const auto rank_of = [&](int chunk) { return work_.stage_ranks[work_.stages[chunk]]; };
    if (computes(action.kind) && rank_of(action.chunk) != rank_) {
      fault("the chunk is of rank " + std::to_string(rank_of(action.chunk)));
    }
    if (!moves(action.kind) || action.chunk == 0) return;
    const int peer = rank_of(runs_here(action.chunk) ? action.chunk - 1 : action.chunk);
    if (action.peer != peer) fault("the other end is rank " + std::to_string(peer));
  }

  void check_training(Kind kind) {
    const bool forward =
        kind == Kind::kForwardLight || kind == Kind::kGather || kind == Kind::kFree || moves(kind);
    if (!work_.training && !forward) fault("a step without training has light forwards alone");
  }

  void check_compute(const Action& action) {
    Progress& p = cells_[cell(action.chunk, action.microbatch)];
    if (gathers_ && !chunks_[owner_[action.chunk]].present) {
      fault("the chunk's parameters are not gathered");
    }
    switch (action.kind) {
      case Kind::kForwardLight:
        if (p.has_output()) fault("a light forward comes first and once");
        check_input(action);
        ++p.light;
        break;
      case Kind::kForward:
        if (p.forward > 0) fault("a second forward");
        check_input(action);
        ++p.forward;
        break;
      case Kind::kBackwardWeight:
        if (p.input_half == 0 || p.is_done()) fault("the weight half follows the input half, once");
        ++p.weight_half;
        break;
      default:
        if (p.forward == 0) fault("no forward before it");
        if (p.has_input_gradient()) fault("a second backward");
        check_output_gradient(action);
        ++(action.kind == Kind::kBackward ? p.backward : p.input_half);
        add_to_sum(action);
    }
    const bool last = action.kind == Kind::kBackward || action.kind == Kind::kBackwardWeight;
    if (last && p.backward + p.weight_half == 1) ++chunks_[action.chunk].done;
  }

  void check_beside(const Action& action) {
    if (action.kind != Kind::kBackward) return fault("a backward alone runs beside a forward");
    const Action* const next = at_ + 1 < list_.size() ? &list_[at_ + 1] : nullptr;
    const bool forward =
        next != nullptr && (next->kind == Kind::kForward || next->kind == Kind::kForwardLight);
    if (!forward || next->beside) return fault("no forward stands behind it, to run beside it");
    if (next->microbatch == action.microbatch) fault("runs beside a forward of its microbatch");
  }

  void add_to_sum(const Action& action) {
    const int owner = owner_[action.chunk];
    Sum& sum = sums_[cell(owner, action.microbatch)];
    if (!sum.open && !sum.reduced) ++chunks_[owner].open;
    sum.open = true;
  }

  void check_input(const Action& action) {
    if (action.chunk == 0 || cells_[cell(action.chunk, action.microbatch)].received) return;
    if (!cells_[cell(action.chunk - 1, action.microbatch)].has_output()) {
      fault("its input is not there");
    }
  }

  void check_output_gradient(const Action& action) {
    if (action.chunk + 1 == work_.chunks) return;
    const Progress& next = cells_[cell(action.chunk + 1, action.microbatch)];
    if (!next.received && !next.has_input_gradient()) fault("its output's gradient is not there");
  }

  // Without its consumer here, chunk c's input comes from c - 1 here; else it is c's gradient.
  void check_transfer(const Action& action) {
    Progress& p = cells_[cell(action.chunk, action.microbatch)];
    if (action.kind == Kind::kRecv) {
      if (p.received) fault("received twice");
      p.received = true;
      return;
    }
    const bool there = runs_here(action.chunk)
                           ? p.has_input_gradient()
                           : cells_[cell(action.chunk - 1, action.microbatch)].has_output();
    if (!there) fault("sent before it is computed");
  }

  void check_gather(int chunk) {
    if (chunks_[chunk].present) fault("gathered while it is there");
    chunks_[chunk].present = true;
  }

  void check_free(int chunk) {
    if (!chunks_[chunk].present) fault("freed without being gathered");
    chunks_[chunk].present = false;
  }

  void check_reduce(const Action& action) {
    const bool one = action.microbatch >= 0;
    ChunkState& state = chunks_[action.chunk];
    if (state.updated) fault("reduced after its update");
    const Sum& own = sums_[cell(action.chunk, std::max(action.microbatch, 0))];
    const int others = state.open - (own.open && !own.reduced ? 1 : 0);
    for (int m = 0; one && others > 0 && m < work_.microbatches; ++m) {
      const Sum& sum = sums_[cell(action.chunk, m)];
      if (m != action.microbatch && sum.open && !sum.reduced) {
        fault("the sum holds microbatch " + std::to_string(m) + " too");
      }
    }
    for (int m = one ? action.microbatch : 0; m < work_.microbatches; ++m) {
      Sum& sum = sums_[cell(action.chunk, m)];
      if (sum.reduced) return fault("a second reduction");
      if (sum.open) --state.open;
      sum.reduced = true;
      for (const int c : state.group) {
        if (!cells_[cell(c, m)].is_done()) return fault("reduced before its last backward");
      }
      if (one) break;
    }
  }

  void check_update(int chunk) {
    std::vector<int> named;
    if (chunk >= 0) {
      named = chunks_[chunk].group;
      if (owner_[chunk] != chunk) fault("is named by the chunk that it is tied to");
      if (named.empty()) fault("the rank does not run chunk " + std::to_string(chunk));
    }
    for (int c = 0; chunk < 0 && c < work_.chunks; ++c) {
      const bool had_one = work_.updates_in_backward && chunks_[c].updated;
      if (chunks_[c].own && !had_one) named.push_back(c);
    }
    for (const int c : named) check_update_of(c);
  }

  void check_update_of(int c) {
    const std::string name = "chunk " + std::to_string(c);
    ChunkState& parameters = chunks_[owner_[c]];
    if (chunks_[c].updated) fault("a second update of " + name);
    chunks_[c].updated = parameters.updated = true;
    if (chunks_[c].done < work_.microbatches)
      fault("an update before " + name + "'s last backward");
    for (int m = 0; parameters.reduces && m < work_.microbatches; ++m) {
      if (sums_[cell(owner_[c], m)].reduced) continue;
      fault("an update of " + name + " before microbatch " + std::to_string(m) + " is reduced");
    }
    if (!parameters.present) return;
    if (parameters.resident) {
      parameters.present = false;  // old values
    } else {
      fault("an update while " + name + "'s old values are gathered");
    }
  }

  void check_snapshot() {
    if (!work_.snapshot) fault("no snapshot was asked for");
    if (at_ + 1 != list_.size()) fault("a snapshot ends the step");
  }

  void check_end() {
    for (int c = 0; c < work_.chunks; ++c) {
      const ChunkState& state = chunks_[c];
      const std::string chunk = "chunk " + std::to_string(c);
      if (state.own && work_.training) {
        if (state.done < work_.microbatches) fault(chunk + " does not finish all microbatches");
        if (!state.updated) fault(chunk + " is never updated");
      }
      if (state.own && !work_.training) check_light(c, "has no");
      if (state.own && gathers_ && !chunks_[owner_[c]].gathered) {
        fault(chunk + " is not gathered, and others are");
      }
      if (state.present && !state.resident) fault(chunk + " is never freed");
      if (state.resident && !state.present) fault("the next step lacks " + chunk);
    }
    for (const int c : work_.recomputed) {
      if (work_.training) check_light(c, "is to be recomputed and has no");
    }
    const bool saved = !list_.empty() && list_.back().kind == Kind::kSnapshot;
    if (work_.snapshot && !saved) fault("the snapshot is missing");
  }

  void check_light(int chunk, const char* lacks) {
    for (int m = 0; runs_here(chunk) && m < work_.microbatches; ++m) {
      if (cells_[cell(chunk, m)].light == 1) continue;
      fault("chunk " + std::to_string(chunk) + " " + lacks + " light forward of microbatch " +
            std::to_string(m));
    }
  }

  const std::vector<Action>& list_;
  const StepWork& work_;
  const int rank_;
  const std::vector<int>& owner_;
  std::vector<std::string>& faults_;
  size_t at_ = 0;
  bool gathers_ = false;
  std::vector<ChunkState> chunks_;
  std::vector<Progress> cells_;  // by chunk and microbatch
  std::vector<Sum> sums_;        // by owner and microbatch
};

}  // namespace

std::vector<std::string> schedule_faults(const Schedule& schedule, const StepWork& work) {
  std::vector<std::string> faults;
  if (static_cast<int>(schedule.size()) != work.ranks) {
    return {"a schedule of " + std::to_string(schedule.size()) + " ranks for " +
            std::to_string(work.ranks)};
  }
  const std::vector<int> owner = owners(work);
  Holders holders;
  std::vector<bool> runs(owner.size(), false);
  std::set<std::pair<int, int>> unreduced;  // owner, rank
  for (int rank = 0; rank < work.ranks; ++rank) {
    RankCheck check(schedule, work, rank, owner, faults);
    check.run();
    for (int c = 0; c < work.chunks; ++c) {
      if (!check.runs(c)) continue;
      runs[c] = true;
      holders[owner[c]].insert(rank);
      if (!check.reduces(owner[c])) unreduced.emplace(owner[c], rank);
    }
  }
  const auto updates = [&](size_t rank) {
    return std::count(schedule[rank].begin(), schedule[rank].end(), Action{Kind::kUpdate});
  };
  for (size_t rank = 1; rank < schedule.size(); ++rank) {
    if (updates(rank) == updates(0)) continue;
    faults.push_back("rank " + std::to_string(rank) + ": " + std::to_string(updates(rank)) +
                     " updates of all chunks, which sum the norm over all ranks; rank 0 has " +
                     std::to_string(updates(0)));
  }
  for (int c = 0; c < work.chunks; ++c) {
    if (!runs[c]) faults.push_back("chunk " + std::to_string(c) + " runs on no rank");
  }
  for (const auto& [c, ranks] : holders) {
    const size_t times = ranks.size() * static_cast<size_t>(work.replicas);
    const auto lacking = unreduced.lower_bound({c, 0});
    const bool all = lacking == unreduced.end() || lacking->first != c;
    if (times == 1 || all || !work.training) continue;
    faults.push_back("chunk " + std::to_string(c) + " runs on " + std::to_string(times) +
                     " ranks and is not reduced on each");
  }
  const std::vector<std::string> stuck = deadlocks(schedule, work, holders);
  faults.insert(faults.end(), stuck.begin(), stuck.end());
  return faults;
}

void verify(const Schedule& schedule, const StepWork& work) {
  std::string text;
  for (const std::string& fault : schedule_faults(schedule, work)) text += "\n" + fault;
  TROUPE_CHECK(text.empty(), "the schedule is not sound:" + text);
}

}  // namespace troupe
