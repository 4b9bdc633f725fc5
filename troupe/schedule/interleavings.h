// Runs the events of a world: each rank in order, meeting others as world_events.h says.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/schedule/world_events.h"

namespace troupe {

// Where each rank is; what channels hold follows from that.
class WorldRun {
 public:
  WorldRun(const WorldEvents& events, int capacity);

  bool can_go(size_t rank) const;
  void go(size_t rank);  // with all members of a collective
  // Until no rank can: each as far as it can, the first one first.
  void go_on();
  bool has_ended(size_t rank) const { return at_[rank] == events_->ranks[rank].size(); }
  bool has_ended() const;
  const Event& next(size_t rank) const { return events_->ranks[rank][at_[rank]]; }
  const std::vector<size_t>& places() const { return at_; }

 private:
  bool members_wait(int group) const;
  void step(size_t rank);
  void skip_own(size_t rank);  // events of this rank alone, and those that wait for nobody

  const WorldEvents* events_;
  int capacity_;
  std::vector<size_t> at_;
  std::vector<int> sent_, posted_;  // by channel
};

// Every order in which ranks can go, state by state.
struct Interleavings {
  int64_t states = 0;   // reached
  int64_t ends = 0;     // of them those from which nothing goes on
  bool all_end = true;  // in each of these every rank is at its end
  bool whole = true;    // false: there are more than `most` states
};
Interleavings interleavings(const WorldEvents& events, int capacity, int64_t most);

}  // namespace troupe
