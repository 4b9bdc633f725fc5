#include "troupe/schedule/deadlock.h"

#include <deque>
#include <tuple>

#include "troupe/schedule/text.h"

namespace troupe {
namespace {

using Cell = std::pair<int, int>;  // chunk, microbatch

bool is_collective(Kind kind) {
  return kind == Kind::kGather || kind == Kind::kReduce;
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Holders& holders)
      : schedule_(schedule), holders_(holders), at_(schedule.size(), 0) {}

  std::vector<std::string> run() {
    std::vector<std::string> faults;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < schedule_.size(); ++rank) {
        while (at_[rank] < schedule_[rank].size() && advance(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < schedule_.size(); ++rank) {
      if (at_[rank] < schedule_[rank].size()) faults.push_back(stuck(rank));
    }
    for (const auto& [ends, channel] : channels_) {
      if (channel.empty()) continue;
      faults.push_back("rank " + std::to_string(ends.first) + ": " +
                       std::to_string(channel.size()) + " sends to rank " +
                       std::to_string(ends.second) + " are never received");
    }
    return faults;
  }

 private:
  bool advance(size_t rank) {
    const Action& a = schedule_[rank][at_[rank]];
    const int self = static_cast<int>(rank);
    if (is_collective(a.kind)) return meet(self, a);
    if (a.kind == Kind::kSend) channels_[{self, a.peer}].emplace_back(a.chunk, a.microbatch);
    if (a.kind == Kind::kRecv) {
      auto& channel = channels_[{a.peer, self}];
      if (channel.empty() || channel.front() != Cell{a.chunk, a.microbatch}) return false;
      channel.pop_front();
    }
    ++at_[rank];
    return true;
  }

  // The last to come lets all go on.
  bool meet(int self, const Action& a) {
    const auto holders = holders_.find(a.chunk);
    if (holders == holders_.end()) return ++at_[self], true;  // told elsewhere
    std::set<int>& here = waiting_[{a.kind, a.chunk, a.microbatch}];
    here.insert(self);
    if (here.size() < holders->second.size()) return false;
    for (const int rank : here) ++at_[rank];
    here.clear();
    return true;
  }

  std::string stuck(size_t rank) const {
    const Action& a = schedule_[rank][at_[rank]];
    return "rank " + std::to_string(rank) + ", position " + std::to_string(at_[rank]) + " (" +
           to_text(a) +
           (is_collective(a.kind)
                ? "): waits for ever: others issue their gathers and reductions in another order"
                : "): waits for ever, or for another value than the next that is sent");
  }

  const Schedule& schedule_;
  const Holders& holders_;
  std::vector<size_t> at_;
  std::map<std::pair<int, int>, std::deque<Cell>> channels_;  // (from, to) -> in flight, in order
  std::map<std::tuple<Kind, int, int>, std::set<int>> waiting_;
};

}  // namespace

std::vector<std::string> deadlocks(const Schedule& schedule, const Holders& holders) {
  return Simulation(schedule, holders).run();
}

}  // namespace troupe
