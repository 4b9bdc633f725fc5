// Proves what all ranks of a run do in a step, together, before it runs: over the very lists that
// the executor runs, with what it makes of each action (world_events.h).
//
//   messages     of each channel the sends and the receives are as many, the same in order, and of
//                the same sizes
//   collectives  all members of a group call the same ones, in the same order, with the same sizes
//   memory       no value is read before it is made or has come, or after its release; none is
//                released twice, and none is left
//   gradients    each microbatch's gradient of each unit is added once, reduced once where others
//                have the same parameters, and whole when the update reads it; the groups of a
//                reduction reach each rank that holds the parameters once
//   deadlock     all ranks end, whatever their speeds, with room for `capacity` messages
//
// One run decides about all. Ranks are sequential and decide nothing by timing; a channel has one
// writer and one reader. An event that may go on stays so until it does: what others do only adds
// to what they have sent, posted and come to. So two events that may go on can go in either order
// to the same state (Kahn's networks with bounded channels), and if one maximal run ends, all do
// (interleavings.h takes every order of small worlds, to test this argument). More room only lets
// more happen: what ends as a rendezvous ends at every capacity, and likewise where a collective
// is waited for later than it begins. So one number says all: the least room.
//
// Not covered: a device on which a kernel that waits keeps another from starting (PL14), turns of a
// backward and a forward within a unit (OV8: taken as one after the other), groups that an optimizer
// of whole matrices calls within its update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/schedule/world_events.h"

namespace troupe {

struct Proof {
  std::vector<std::string> faults = {};  // "rank 3, position 7 (B1.0): ..."; none: it is proven
  int capacity = 0;  // the least room of channels with which all end; 0: each send a rendezvous
  int64_t events = 0;
};

// `most`: the room that channels have.
Proof prove(const WorldEvents& events, int most);

// Also that reductions reach all that hold the same parameters.
Proof prove(const std::vector<Schedule>& schedules, const StepWork& work, const StepWorld& world);

// Throws E9001 with the faults. What a run does before its first step, for its own layout.
Proof require_proven(const std::vector<Schedule>& schedules, const StepWork& work,
                     const StepWorld& world);

}  // namespace troupe
