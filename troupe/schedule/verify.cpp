#include "troupe/schedule/verify.h"

#include <algorithm>
#include <map>
#include <set>

#include "troupe/core/check.h"
#include "troupe/schedule/deadlock.h"
#include "troupe/schedule/text.h"

namespace troupe {
namespace {

using Cell = std::pair<int, int>;  // chunk, microbatch

bool computes(Kind kind) {
  return kind == Kind::kForwardLight || kind == Kind::kForward || kind == Kind::kBackward ||
         kind == Kind::kBackwardInput || kind == Kind::kBackwardWeight;
}
bool moves(Kind kind) {
  return kind == Kind::kSend || kind == Kind::kRecv;
}

// What is known of one chunk and microbatch on one rank so far.
struct Progress {
  int light = 0, forward = 0, backward = 0, input_half = 0, weight_half = 0;
  bool has_output() const { return light + forward > 0; }
  bool has_input_gradient() const { return backward + input_half > 0; }
  bool is_done() const { return backward + weight_half > 0; }
};

// Walks one rank's list.
class RankCheck {
 public:
  RankCheck(const Schedule& schedule, const StepWork& work, int rank,
            std::vector<std::string>& faults)
      : list_(schedule[static_cast<size_t>(rank)]),
        work_(work),
        rank_(rank),
        owner_(owners(work)),
        faults_(faults) {
    bool updated = false;
    for (const Action& action : list_) {
      if (computes(action.kind)) own_.insert(action.chunk);
      if (action.kind == Kind::kGather) gathered_.insert(action.chunk);
      if (action.kind == Kind::kGather && updated) present_.insert(action.chunk);
      if (action.kind == Kind::kReduce) reduces_ = true;
      if (action.kind == Kind::kUpdate) updated = true;
    }
    resident_ = present_;
  }

  void run() {
    for (at_ = 0; at_ < list_.size(); ++at_) {
      const Action& action = list_[at_];
      if (!check_range(action)) continue;
      if (computes(action.kind)) check_compute(action);
      if (moves(action.kind)) check_transfer(action);
      if (action.kind == Kind::kGather) check_gather(action.chunk);
      if (action.kind == Kind::kFree) check_free(action.chunk);
      if (action.kind == Kind::kReduce) check_reduce(action);
      if (action.kind == Kind::kUpdate) check_update(action.chunk);
      if (action.kind == Kind::kSnapshot) check_snapshot();
    }
    check_end();
  }

  const std::set<int>& own() const { return own_; }
  bool reduces() const { return reduces_; }

 private:
  void fault(const std::string& what) {
    std::string place = "rank " + std::to_string(rank_);
    if (at_ < list_.size()) {
      place += ", position " + std::to_string(at_) + " (" + to_text(list_[at_]) + ")";
    }
    faults_.push_back(place + ": " + what);
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
    if (of_parameters && action.chunk >= 0 && action.chunk < work_.chunks) check_group(action);
    if (moves(action.kind) && (action.peer < 0 || action.peer >= work_.ranks ||
                               action.peer == rank_ || action.chunk == 0)) {
      fault("no such transfer");
    }
    return faults_.size() == before;
  }

  void check_group(const Action& action) {
    const int owner = owner_[action.chunk];
    if (owner != action.chunk) fault("is named by chunk " + std::to_string(owner) + ", its tie");
    if (group(owner).empty()) fault("the rank does not run this chunk");
  }

  // The chunks of this rank whose parameters go by the name `owner`.
  std::vector<int> group(int owner) const {
    std::vector<int> out;
    for (const int c : own_) {
      if (c < work_.chunks && c >= 0 && owner_[c] == owner) out.push_back(c);
    }
    return out;
  }

  void check_compute(const Action& action) {
    const Cell cell{action.chunk, action.microbatch};
    Progress& p = cells_[cell];
    if (!gathered_.empty() && !present_.contains(owner_[action.chunk])) {
      fault("the chunk's parameters are not gathered");
    }
    switch (action.kind) {
      case Kind::kForwardLight:
        if (p.has_output()) fault("a light forward comes first and once");
        check_input(cell);
        ++p.light;
        break;
      case Kind::kForward:
        if (p.forward > 0) fault("a second forward");
        check_input(cell);
        ++p.forward;
        break;
      case Kind::kBackwardWeight:
        if (p.input_half == 0 || p.is_done()) fault("the weight half follows the input half, once");
        ++p.weight_half;
        break;
      default:
        if (p.forward == 0) fault("no forward before it");
        if (p.has_input_gradient()) fault("a second backward");
        check_output_gradient(cell);
        ++(action.kind == Kind::kBackward ? p.backward : p.input_half);
    }
  }

  void check_input(const Cell& cell) {
    if (cell.first == 0 || received_.contains(cell)) return;
    const auto before = cells_.find({cell.first - 1, cell.second});
    if (before == cells_.end() || !before->second.has_output()) fault("its input is not there");
  }

  void check_output_gradient(const Cell& cell) {
    const Cell next{cell.first + 1, cell.second};
    if (next.first == work_.chunks || received_.contains(next)) return;
    const auto after = cells_.find(next);
    if (after == cells_.end() || !after->second.has_input_gradient()) {
      fault("its output's gradient is not there");
    }
  }

  // Without its consumer here, chunk c's input comes from c - 1 here; else it is c's gradient.
  void check_transfer(const Action& action) {
    const Cell cell{action.chunk, action.microbatch};
    if (action.kind == Kind::kRecv) {
      if (!received_.insert(cell).second) fault("received twice");
      return;
    }
    const bool is_gradient = own_.contains(action.chunk);
    const auto source = cells_.find(is_gradient ? cell : Cell{action.chunk - 1, action.microbatch});
    const bool there = source != cells_.end() && (is_gradient ? source->second.has_input_gradient()
                                                              : source->second.has_output());
    if (!there) fault("sent before it is computed");
  }

  void check_gather(int chunk) {
    if (!present_.insert(chunk).second) fault("gathered while it is there");
  }

  void check_free(int chunk) {
    if (present_.erase(chunk) == 0) fault("freed without being gathered");
  }

  bool is_done(const Cell& cell) const {
    const auto found = cells_.find(cell);
    return found != cells_.end() && found->second.is_done();
  }

  // Whether this microbatch has added to the gradient of the chunks of that name.
  bool has_begun(int owner, int m) const {
    const std::vector<int> chunks = group(owner);
    return std::any_of(chunks.begin(), chunks.end(), [&](int c) {
      const auto found = cells_.find({c, m});
      return found != cells_.end() && found->second.has_input_gradient();
    });
  }

  bool all_done(int chunk) const {
    for (int m = 0; m < work_.microbatches; ++m) {
      if (!is_done({chunk, m})) return false;
    }
    return true;
  }

  void check_reduce(const Action& action) {
    const bool one = action.microbatch >= 0;
    if (updated_.contains(action.chunk)) fault("reduced after its update");
    for (int m = 0; one && m < work_.microbatches; ++m) {
      if (m != action.microbatch && !reduced_.contains({action.chunk, m}) &&
          has_begun(action.chunk, m)) {
        fault("the sum holds microbatch " + std::to_string(m) + " too");
      }
    }
    for (int m = one ? action.microbatch : 0; m < work_.microbatches; ++m) {
      if (!reduced_.insert({action.chunk, m}).second) return fault("a second reduction");
      for (const int c : group(action.chunk)) {
        if (!is_done({c, m})) return fault("reduced before its last backward");
      }
      if (one) break;
    }
  }

  void check_update(int chunk) {
    std::set<int> named{chunk};
    if (chunk < 0) named = own_;
    if (chunk >= 0 && owner_[chunk] != chunk) fault("is named by the chunk that it is tied to");
    if (chunk >= 0) {
      for (const int c : group(chunk)) named.insert(c);
    }
    for (const int c : named) {
      const std::string name = "chunk " + std::to_string(c);
      if (!own_.contains(c)) fault("the rank does not run " + name);
      if (!updated_.insert(c).second) fault("a second update of " + name);
      if (!all_done(c)) fault("an update before " + name + "'s last backward");
      for (int m = 0; reduces_ && m < work_.microbatches; ++m) {
        if (reduced_.contains({owner_[c], m})) continue;
        fault("an update of " + name + " before microbatch " + std::to_string(m) + " is reduced");
      }
      if (!present_.contains(c)) continue;
      if (resident_.contains(c)) {
        present_.erase(c);  // old values
      } else {
        fault("an update while " + name + "'s old values are gathered");
      }
    }
  }

  void check_snapshot() {
    if (!work_.snapshot) fault("no snapshot was asked for");
    if (at_ + 1 != list_.size()) fault("a snapshot ends the step");
  }

  void check_end() {
    for (const int c : own_) {
      const std::string chunk = "chunk " + std::to_string(c);
      if (!all_done(c)) fault(chunk + " does not finish all microbatches");
      if (!updated_.contains(c)) fault(chunk + " is never updated");
      if (!gathered_.empty() && !gathered_.contains(owner_[c])) {
        fault(chunk + " is not gathered, and others are");
      }
    }
    for (const int c : work_.recomputed) check_light(c);
    for (const int c : present_) {
      if (!resident_.contains(c)) fault("chunk " + std::to_string(c) + " is never freed");
    }
    for (const int c : resident_) {
      if (!present_.contains(c)) fault("the next step lacks chunk " + std::to_string(c));
    }
    const bool saved = !list_.empty() && list_.back().kind == Kind::kSnapshot;
    if (work_.snapshot && !saved) fault("the snapshot is missing");
  }

  void check_light(int chunk) {
    for (int m = 0; own_.contains(chunk) && m < work_.microbatches; ++m) {
      const auto found = cells_.find({chunk, m});
      if (found != cells_.end() && found->second.light == 1) continue;
      fault("chunk " + std::to_string(chunk) + " is to be recomputed and has no light forward of " +
            "microbatch " + std::to_string(m));
    }
  }

  const std::vector<Action>& list_;
  const StepWork& work_;
  const int rank_;
  const std::vector<int> owner_;
  std::vector<std::string>& faults_;
  size_t at_ = 0;
  bool reduces_ = false;
  std::set<int> own_, gathered_, present_, updated_;
  std::set<int> resident_;  // gathered after the update, for the next step
  std::set<Cell> received_, reduced_;
  std::map<Cell, Progress> cells_;
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
  std::set<int> run, reducing;
  for (int rank = 0; rank < work.ranks; ++rank) {
    RankCheck check(schedule, work, rank, faults);
    check.run();
    if (check.reduces()) reducing.insert(rank);
    for (const int c : check.own()) {
      if (c < 0 || c >= work.chunks) continue;
      run.insert(c);
      holders[owner[c]].insert(rank);
    }
  }
  for (int c = 0; c < work.chunks; ++c) {
    if (!run.contains(c)) faults.push_back("chunk " + std::to_string(c) + " runs on no rank");
  }
  for (const auto& [c, ranks] : holders) {
    const size_t times = ranks.size() * static_cast<size_t>(work.replicas);
    const bool all = std::includes(reducing.begin(), reducing.end(), ranks.begin(), ranks.end());
    if (times == 1 || all) continue;
    faults.push_back("chunk " + std::to_string(c) + " runs on " + std::to_string(times) +
                     " ranks and is not reduced on each");
  }
  const std::vector<std::string> stuck = deadlocks(schedule, holders);
  faults.insert(faults.end(), stuck.begin(), stuck.end());
  return faults;
}

void verify(const Schedule& schedule, const StepWork& work) {
  std::string text;
  for (const std::string& fault : schedule_faults(schedule, work)) text += "\n" + fault;
  TROUPE_CHECK(text.empty(), "the schedule is not sound:" + text);
}

}  // namespace troupe
