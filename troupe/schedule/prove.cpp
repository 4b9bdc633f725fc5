#include "troupe/schedule/prove.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/holders.h"
#include "troupe/schedule/interleavings.h"
#include "troupe/schedule/text.h"

namespace troupe {
namespace {

class WorldFaults {
 public:
  explicit WorldFaults(const WorldEvents& events) : events_(events) {}

  void add(size_t rank, const Event* event, const std::string& what) {
    std::string place = "rank " + std::to_string(rank);
    const std::vector<Action>& list = events_.list_of(rank);
    if (event != nullptr && event->position >= 0 && event->position < std::ssize(list)) {
      const Action& a = list[static_cast<size_t>(event->position)];
      place.append(", position ").append(std::to_string(event->position));
      place.append(" (").append(to_text(a)).append(")");
    }
    faults_.push_back(place + ": " + what);
  }
  bool empty() const { return faults_.empty(); }
  std::vector<std::string> take() { return std::exchange(faults_, {}); }

 private:
  const WorldEvents& events_;
  std::vector<std::string> faults_;
};

using Sequence = std::vector<const Event*>;

// Reports the first difference between two ranks' sequences of the same messages or collectives.
void compare(const Sequence& one, size_t rank, const Sequence& other, size_t other_rank,
             const std::string& of, WorldFaults& faults) {
  const auto text = [](const Sequence& all, size_t i) {
    if (i >= all.size()) return std::string("no more");
    const std::string size = all[i]->size < 0 ? "" : ", " + std::to_string(all[i]->size);
    return to_text(all[i]->what) + size;
  };
  for (size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
    if (i < one.size() && i < other.size() && one[i]->what == other[i]->what &&
        one[i]->size == other[i]->size) {
      continue;
    }
    std::string what = of + ", number " + std::to_string(i) + ": this rank has ";
    what.append(text(one, i)).append("; rank ").append(std::to_string(other_rank));
    what.append(" has ").append(text(other, i));
    return faults.add(rank, i < one.size() ? one[i] : nullptr, what);
  }
}

std::string group_text(const std::vector<int>& ranks) {
  std::string out = "collectives of ranks";
  for (const int rank : ranks) out.append(" ").append(std::to_string(rank));
  return out;
}

void check_messages(const WorldEvents& events, WorldFaults& faults) {
  std::vector<Sequence> sent(events.links.size()), posted(events.links.size());
  std::vector<std::map<int, Sequence>> met(events.ranks.size());
  for (size_t rank = 0; rank < events.ranks.size(); ++rank) {
    for (const Event& e : events.ranks[rank]) {
      if (e.kind == Event::kSend) sent[static_cast<size_t>(e.where)].push_back(&e);
      if (e.kind == Event::kPost) posted[static_cast<size_t>(e.where)].push_back(&e);
      if (e.kind == Event::kMeet) met[rank][e.where].push_back(&e);
    }
  }
  for (size_t i = 0; i < events.links.size(); ++i) {
    const WorldEvents::Link& link = events.links[i];
    const std::string of = std::string(link.gradients ? "gradients" : "activations") + " to rank " +
                           std::to_string(link.to);
    compare(sent[i], static_cast<size_t>(link.from), posted[i], static_cast<size_t>(link.to), of,
            faults);
  }
  for (size_t g = 0; g < events.groups.size(); ++g) {
    const std::vector<int>& members = events.groups[g];
    const auto first = static_cast<size_t>(members.front());
    for (const int member : members) {
      const auto rank = static_cast<size_t>(member);
      const auto group = static_cast<int>(g);
      compare(met[rank][group], rank, met[first][group], first, group_text(members), faults);
    }
  }
}

// The values of one rank.
class MemoryCheck {
 public:
  MemoryCheck(size_t rank, WorldFaults& faults) : rank_(rank), faults_(faults) {}

  void event(const Event& e) {
    switch (e.kind) {
      case Event::kMake:
        if (!here_.insert(e.what).second) fault(e, "is made while it is there");
        return;
      case Event::kPost:
        if (!here_.contains(e.what)) fault(e, "is received without a place");
        if (!coming_.insert(e.what).second) fault(e, "is received while it comes");
        return;
      case Event::kAwait: coming_.erase(e.what); return;
      case Event::kRead:
        if (!here_.contains(e.what)) return fault(e, "is read and not there");
        if (coming_.contains(e.what)) fault(e, "is read before it has come");
        return;
      case Event::kDrop:
        if (here_.erase(e.what) == 0) fault(e, "is released and not there");
        if (coming_.erase(e.what) > 0) fault(e, "is released while it comes");
        return;
      default: return;
    }
  }
  void end() {
    for (const Name& name : here_) faults_.add(rank_, nullptr, "the " + to_text(name) + " is left");
  }

 private:
  void fault(const Event& e, const char* what) {
    faults_.add(rank_, &e, "the " + to_text(e.what) + " " + what);
  }
  const size_t rank_;
  WorldFaults& faults_;
  std::set<Name> here_, coming_;
};

// The gradients of one rank: each part of each microbatch's once.
class GradientCheck {
 public:
  GradientCheck(size_t rank, WorldFaults& faults) : rank_(rank), faults_(faults) {}

  void event(const Event& e) {
    if (e.kind == Event::kAdd) {
      if (used_.contains(e.what.chunk)) fault(e, e.what, "comes after the update");
      if ((parts_[e.what] & e.size) != 0) fault(e, e.what, "is added a second time");
      parts_[e.what] |= e.size;
      local_[e.where].insert(e.what);
    }
    if (e.kind == Event::kFold) {
      if (whole_[e.where] > 0) fault(e, e.what, "is reduced after its last reduction");
      if (local_[e.where].empty()) fault(e, e.what, "is reduced, and nothing was added to it");
      for (const Name& name : local_[e.where]) {
        if (parts_[name] != Event::kBoth) fault(e, name, "is reduced before it is whole");
        const bool other = e.what.microbatch >= 0 && name.microbatch != e.what.microbatch;
        if (other) fault(e, name, "is in the sum of another microbatch");
      }
      local_[e.where].clear();
    }
    if (e.kind == Event::kWhole) ++whole_[e.where];
    if (e.kind == Event::kUse) use(e);
  }

 private:
  void use(const Event& e) {
    if (!used_.insert(e.what.chunk).second) fault(e, e.what, "is used by a second update");
    for (int m = 0; m < e.number; ++m) {
      const Name name{Thing::kSum, e.what.chunk, m};
      if (parts_[name] != Event::kBoth) fault(e, name, "is not whole at the update");
      if (e.size > 0 && local_[e.where].contains(name)) fault(e, name, "was never reduced");
    }
    if (whole_[e.where] != e.size) {
      fault(e, e.what,
            e.size > whole_[e.where] ? "is not summed over all that hold it"
                                     : "is summed more than once");
    }
  }
  void fault(const Event& e, const Name& name, const char* what) {
    faults_.add(rank_, &e, "the " + to_text(name) + " " + what);
  }
  const size_t rank_;
  WorldFaults& faults_;
  std::map<Name, int64_t> parts_;
  std::map<int, std::set<Name>> local_;  // by owner: added and not yet reduced
  std::map<int, int64_t> whole_;
  std::set<int> used_;
};

void check_ranks(const WorldEvents& events, WorldFaults& faults) {
  for (size_t rank = 0; rank < events.ranks.size(); ++rank) {
    MemoryCheck memory(rank, faults);
    GradientCheck gradients(rank, faults);
    for (const Event& e : events.ranks[rank]) {
      memory.event(e);
      gradients.event(e);
    }
    memory.end();
  }
}

std::string stuck_text(const Event& e, const WorldEvents& events) {
  const auto where = static_cast<size_t>(e.where);
  const std::string what = "waits for ever with the " + to_text(e.what);
  if (e.kind == Event::kMeet) return what + " in " + group_text(events.groups[where]);
  const bool sends = e.kind == Event::kSend;
  const int peer = sends ? events.links[where].to : events.links[where].from;
  return what + (sends ? " to rank " : " from rank ") + std::to_string(peer);
}

// The least room with which all end; tells who waits where none does.
int least_capacity(const WorldEvents& events, int most, WorldFaults& faults) {
  for (int capacity = 0;; ++capacity) {
    WorldRun run(events, capacity);
    run.go_on();
    if (run.has_ended()) return capacity;
    if (capacity < most) continue;
    for (size_t rank = 0; rank < events.ranks.size(); ++rank) {
      if (run.has_ended(rank)) continue;
      faults.add(rank, &run.next(rank), stuck_text(run.next(rank), events));
    }
    return capacity;
  }
}

}  // namespace

Proof prove(const WorldEvents& events, int most) {
  Proof out;
  for (const std::vector<Event>& rank : events.ranks) out.events += std::ssize(rank);
  WorldFaults faults(events);
  check_messages(events, faults);
  check_ranks(events, faults);
  out.capacity = least_capacity(events, most, faults);
  out.faults = faults.take();
  return out;
}

Proof prove(const std::vector<Schedule>& schedules, const StepWork& work, const StepWorld& world) {
  Proof out = prove(world_events(schedules, work, world), work.depth);
  const std::vector<std::string> more = sharing_faults(work, world);
  out.faults.insert(out.faults.end(), more.begin(), more.end());
  return out;
}

Proof require_proven(const std::vector<Schedule>& schedules, const StepWork& work,
                     const StepWorld& world) {
  constexpr size_t kTold = 10;
  std::string text;
  Proof proof = prove(schedules, work, world);
  for (size_t i = 0; i < std::min(kTold, proof.faults.size()); ++i) text += "\n" + proof.faults[i];
  TROUPE_CHECK(text.empty(), "the step of this layout is not sound:" + text);
  return proof;
}

}  // namespace troupe
