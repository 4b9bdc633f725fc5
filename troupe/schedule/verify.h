// Proves a schedule before it runs. Each fault is a line "rank 1, position 7 (B0.3): ..."; the
// Error holds all of them.
//
//   order      `after` names earlier positions; chunks, microbatches, peers exist
//   compute    a rank that runs a chunk runs all of its microbatches: one forward, then either one
//              backward or an input half followed by a weight half; at most one light forward,
//              before
//   data       the input of chunk c > 0 is there: computed here or received; its gradient likewise
//   transfers  every send meets its receive, in the same order on both sides
//   deadlock   with each rank issuing in order and each receive waiting for its send, all finish,
//              whatever the ranks' speeds
//   parameters if a chunk is gathered, it is so before each use and freed after the last
//   update     every chunk is reduced at most once, after its last backward, and updated once,
//   after
//              that; a chunk that runs on several ranks must be reduced
#pragma once

#include <string>
#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

std::vector<std::string> schedule_faults(const Schedule& schedule, const StepWork& work);
void verify(const Schedule& schedule, const StepWork& work);  // throws if there are any

// What a rank holds at the worst moment of the step.
struct PeakLive {
  int graphs = 0;  // chunk and microbatch pairs whose graph waits for its backward
  int inputs = 0;  // whose input alone is kept (light forwards)
};
PeakLive peak_live(const std::vector<Action>& rank);

}  // namespace troupe
