#include "troupe/schedule/verify.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "troupe/core/check.h"
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
      : list_(schedule[static_cast<size_t>(rank)]), work_(work), rank_(rank), faults_(faults) {
    for (const Action& action : list_) {
      if (computes(action.kind)) own_.insert(action.chunk);
      if (action.kind == Kind::kGather) gathered_.insert(action.chunk);
    }
  }

  void run() {
    for (at_ = 0; at_ < list_.size(); ++at_) {
      const Action& action = list_[at_];
      if (!check_range(action)) continue;
      if (computes(action.kind)) check_compute(action);
      if (moves(action.kind)) check_transfer(action);
      if (action.kind == Kind::kGather) present_.insert(action.chunk);
      if (action.kind == Kind::kFree) check_free(action.chunk);
      if (action.kind == Kind::kReduce) check_reduce(action.chunk);
      if (action.kind == Kind::kUpdate) check_update(action.chunk);
    }
    check_end();
  }

  const std::set<int>& own() const { return own_; }
  const std::set<int>& reduced() const { return reduced_; }

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
    if (moves(action.kind) && (action.peer < 0 || action.peer >= work_.ranks ||
                               action.peer == rank_ || action.chunk == 0)) {
      fault("no such transfer");
    }
    return faults_.size() == before;
  }

  void check_compute(const Action& action) {
    const Cell cell{action.chunk, action.microbatch};
    Progress& p = cells_[cell];
    if (gathered_.contains(action.chunk) && !present_.contains(action.chunk)) {
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

  void check_free(int chunk) {
    if (present_.erase(chunk) == 0) fault("freed without being gathered");
  }

  bool all_done(int chunk) const {
    for (int m = 0; m < work_.microbatches; ++m) {
      const auto found = cells_.find({chunk, m});
      if (found == cells_.end() || !found->second.is_done()) return false;
    }
    return true;
  }

  void check_reduce(int chunk) {
    if (!own_.contains(chunk)) fault("the rank does not run this chunk");
    if (!reduced_.insert(chunk).second) fault("a second reduction");
    if (updated_.contains(chunk)) fault("reduced after its update");
    if (!all_done(chunk)) fault("reduced before its last backward");
  }

  void check_update(int chunk) {
    for (const int c : chunk < 0 ? own_ : std::set<int>{chunk}) {
      if (!own_.contains(c)) fault("the rank does not run chunk " + std::to_string(c));
      if (!updated_.insert(c).second) fault("a second update of chunk " + std::to_string(c));
      if (!all_done(c)) fault("an update before chunk " + std::to_string(c) + "'s last backward");
    }
  }

  void check_end() {
    for (const int c : own_) {
      const std::string chunk = "chunk " + std::to_string(c);
      if (!all_done(c)) fault(chunk + " does not finish all microbatches");
      if (!updated_.contains(c)) fault(chunk + " is never updated");
    }
    for (const int c : present_) fault("chunk " + std::to_string(c) + " is never freed");
  }

  const std::vector<Action>& list_;
  const StepWork& work_;
  const int rank_;
  std::vector<std::string>& faults_;
  size_t at_ = 0;
  std::set<int> own_, gathered_, present_, reduced_, updated_;
  std::set<Cell> received_;
  std::map<Cell, Progress> cells_;
};

using Transfer = std::tuple<int, int, int, int>;  // from, to, chunk, microbatch

// Every rank issues in order; a receive waits for its send, which waits for nobody. If all lists
// can be emptied so, no timing can stop them: what is enabled stays enabled.
void check_transfers(const Schedule& schedule, std::vector<std::string>& faults) {
  std::map<std::pair<int, int>, std::deque<Cell>> channels;  // (from, to) -> in flight, in order
  std::vector<size_t> at(schedule.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedule.size(); ++rank) {
      for (; at[rank] < schedule[rank].size(); ++at[rank], moved = true) {
        const Action& a = schedule[rank][at[rank]];
        const int self = static_cast<int>(rank);
        if (a.kind == Kind::kSend) channels[{self, a.peer}].emplace_back(a.chunk, a.microbatch);
        if (a.kind != Kind::kRecv) continue;
        auto& channel = channels[{a.peer, self}];
        if (channel.empty() || channel.front() != Cell{a.chunk, a.microbatch}) break;
        channel.pop_front();
      }
    }
  }
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    if (at[rank] == schedule[rank].size()) continue;
    faults.push_back("rank " + std::to_string(rank) + ", position " + std::to_string(at[rank]) +
                     " (" + to_text(schedule[rank][at[rank]]) +
                     "): waits for ever, or for another value than the next that is sent");
  }
  for (const auto& [ends, channel] : channels) {
    if (channel.empty()) continue;
    faults.push_back("rank " + std::to_string(ends.first) + ": " + std::to_string(channel.size()) +
                     " sends to rank " + std::to_string(ends.second) + " are never received");
  }
}

}  // namespace

std::vector<std::string> schedule_faults(const Schedule& schedule, const StepWork& work) {
  std::vector<std::string> faults;
  if (static_cast<int>(schedule.size()) != work.ranks) {
    return {"a schedule of " + std::to_string(schedule.size()) + " ranks for " +
            std::to_string(work.ranks)};
  }
  std::map<int, std::vector<bool>> holders;  // chunk -> for each rank that runs it: is it reduced
  for (int rank = 0; rank < work.ranks; ++rank) {
    RankCheck check(schedule, work, rank, faults);
    check.run();
    for (const int c : check.own()) holders[c].push_back(check.reduced().contains(c));
  }
  for (int c = 0; c < work.chunks; ++c) {
    const std::vector<bool>& held = holders[c];
    const std::string chunk = "chunk " + std::to_string(c);
    if (held.empty()) faults.push_back(chunk + " runs on no rank");
    if (held.size() > 1 && std::find(held.begin(), held.end(), false) != held.end()) {
      faults.push_back(chunk + " runs on " + std::to_string(held.size()) +
                       " ranks and is not reduced on each");
    }
  }
  check_transfers(schedule, faults);
  return faults;
}

void verify(const Schedule& schedule, const StepWork& work) {
  std::string text;
  for (const std::string& fault : schedule_faults(schedule, work)) text += "\n" + fault;
  TROUPE_CHECK(text.empty(), "the schedule is not sound:" + text);
}

PeakLive peak_live(const std::vector<Action>& rank) {
  PeakLive peak;
  std::set<Cell> graphs, inputs;
  for (const Action& action : rank) {
    const Cell cell{action.chunk, action.microbatch};
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

}  // namespace troupe
