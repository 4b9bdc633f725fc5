#include "troupe/schedule/deadlock.h"

#include <algorithm>
#include <tuple>

#include "troupe/schedule/text.h"

namespace troupe {
namespace {

bool is_collective(Kind kind) {
  return kind == Kind::kGather || kind == Kind::kReduce;
}
bool is_compute(Kind kind) {
  return kind == Kind::kForwardLight || kind == Kind::kForward || kind == Kind::kBackward ||
         kind == Kind::kBackwardInput || kind == Kind::kBackwardWeight;
}

struct Channel {
  int from, to;
  bool gradients;
  std::vector<size_t> sent = {}, posted = {};  // cells, in order
  size_t received = 0;
};

enum class Value : uint8_t { kNone, kPosted, kHere };

class Simulation {
 public:
  Simulation(const Schedule& schedule, const StepWork& work, const Holders& holders)
      : schedule_(schedule),
        work_(work),
        holders_(holders),
        at_(schedule.size(), 0),
        channels_(schedule.size()) {
    const auto chunks = static_cast<size_t>(work.chunks);
    runs_.assign(schedule.size(), std::vector<bool>(chunks, false));
    bool moves = false;
    for (size_t rank = 0; rank < schedule.size(); ++rank) {
      for (const Action& a : schedule[rank]) {
        if (is_compute(a.kind) && is_cell(a)) runs_[rank][static_cast<size_t>(a.chunk)] = true;
        moves |= a.kind == Kind::kRecv;
      }
    }
    if (moves) values_.assign(schedule.size(), std::vector<Value>(cell(work.chunks, 0)));
  }

  std::vector<std::string> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < schedule_.size(); ++rank) {
        while (at_[rank] < schedule_[rank].size() && advance(rank)) moved = true;
      }
    }
    std::vector<std::string> faults;
    for (size_t rank = 0; rank < schedule_.size(); ++rank) {
      if (at_[rank] < schedule_[rank].size()) faults.push_back(stuck(rank));
    }
    for (const std::vector<Channel>& channels : channels_) {
      for (const Channel& c : channels) add_leftovers(c, faults);
    }
    return faults;
  }

 private:
  size_t cell(int chunk, int microbatch) const {
    return static_cast<size_t>(chunk) * static_cast<size_t>(work_.microbatches) +
           static_cast<size_t>(microbatch);
  }
  bool is_cell(const Action& a) const {
    return 0 <= a.chunk && a.chunk < work_.chunks && 0 <= a.microbatch &&
           a.microbatch < work_.microbatches;
  }

  // False: it waits. Impossible actions are reported elsewhere and never wait.
  bool advance(size_t rank) {
    const Action& a = schedule_[rank][at_[rank]];
    const int self = static_cast<int>(rank);
    if (is_collective(a.kind)) return meet(self, a);
    const bool transfer = a.kind == Kind::kSend || a.kind == Kind::kRecv;
    const bool is_peer = 0 <= a.peer && a.peer < static_cast<int>(schedule_.size());
    if (transfer && is_cell(a) && is_peer) {
      const bool runs = runs_[rank][static_cast<size_t>(a.chunk)];
      if (a.kind == Kind::kSend ? !send(channel(self, a.peer, runs), a)
                                : !post(channel(a.peer, self, !runs), a)) {
        return false;
      }
    }
    if (is_compute(a.kind) && waits(rank, a)) return false;
    ++at_[rank];
    return true;
  }

  bool waits(size_t rank, const Action& a) const {
    if (values_.empty() || !is_cell(a) || a.kind == Kind::kBackwardWeight) return false;
    const bool back = a.kind == Kind::kBackward || a.kind == Kind::kBackwardInput;
    const int chunk = a.chunk + (back ? 1 : 0);
    return chunk < work_.chunks && values_[rank][cell(chunk, a.microbatch)] == Value::kPosted;
  }

  Channel& channel(int from, int to, bool gradients) {
    std::vector<Channel>& all = channels_[static_cast<size_t>(from)];
    for (Channel& c : all) {
      if (c.to == to && c.gradients == gradients) return c;
    }
    return all.emplace_back(Channel{from, to, gradients});
  }
  bool send(Channel& c, const Action& a) {
    if (c.sent.size() - std::min(c.received, c.sent.size()) >= static_cast<size_t>(work_.depth)) {
      return false;
    }
    c.sent.push_back(cell(a.chunk, a.microbatch));
    receive(c);
    return true;
  }
  bool post(Channel& c, const Action& a) {
    c.posted.push_back(cell(a.chunk, a.microbatch));
    if (!values_.empty()) values_[static_cast<size_t>(c.to)][c.posted.back()] = Value::kPosted;
    receive(c);
    return true;
  }
  void receive(Channel& c) {
    while (c.received < c.sent.size() && c.received < c.posted.size() &&
           c.sent[c.received] == c.posted[c.received]) {
      values_[static_cast<size_t>(c.to)][c.sent[c.received++]] = Value::kHere;
    }
  }

  // The last to come lets all go on.
  bool meet(int self, const Action& a) {
    const auto holders = holders_.find(a.chunk);
    const bool alone = holders == holders_.end() || holders->second.size() == 1 ||
                       (a.kind == Kind::kGather && !work_.stages.empty());
    if (alone) return ++at_[static_cast<size_t>(self)], true;
    std::set<int>& here = waiting_[{a.kind, a.chunk, a.microbatch}];
    here.insert(self);
    if (here.size() < holders->second.size()) return false;
    for (const int rank : here) ++at_[static_cast<size_t>(rank)];
    here.clear();
    return true;
  }

  std::string stuck(size_t rank) const {
    const Action& a = schedule_[rank][at_[rank]];
    std::string out = "rank " + std::to_string(rank) + ", position " + std::to_string(at_[rank]) +
                      " (" + to_text(a) + "): waits for ever";
    if (is_collective(a.kind)) {
      return out + ": others issue their gathers and reductions in another order";
    }
    if (a.kind == Kind::kSend) {
      return out + ": rank " + std::to_string(a.peer) + " receives none of the " +
             std::to_string(work_.depth) + " before it";
    }
    return out + ", or for another value than the next that is sent";
  }

  static void add_leftovers(const Channel& c, std::vector<std::string>& faults) {
    const auto tell = [&](int rank, size_t count, const char* what, int peer, const char* never) {
      if (count == 0) return;
      faults.push_back("rank " + std::to_string(rank) + ": " + std::to_string(count) + what +
                       std::to_string(peer) + never);
    };
    tell(c.from, c.sent.size() - c.received, " sends to rank ", c.to, " are never received");
    tell(c.to, c.posted.size() - c.received, " receives from rank ", c.from, " are never sent");
  }

  const Schedule& schedule_;
  const StepWork& work_;
  const Holders& holders_;
  std::vector<size_t> at_;
  std::vector<std::vector<bool>> runs_;         // rank, chunk
  std::vector<std::vector<Value>> values_;      // rank, cell: what it receives; empty: nobody does
  std::vector<std::vector<Channel>> channels_;  // by the sender
  std::map<std::tuple<Kind, int, int>, std::set<int>> waiting_;
};

}  // namespace

std::vector<std::string> deadlocks(const Schedule& schedule, const StepWork& work,
                                   const Holders& holders) {
  return Simulation(schedule, work, holders).run();
}

}  // namespace troupe
