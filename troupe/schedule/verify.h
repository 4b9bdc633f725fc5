// Proves a schedule before it runs. Each fault is a line "rank 1, position 7 (B0.3): ..."; the
// Error holds all of them.
//
//   order      `after` names earlier positions; chunks, microbatches, peers exist
//   compute    a rank that runs a chunk runs all of its microbatches: one forward, then either one
//              backward or an input half followed by a weight half; at most one light forward,
//              before
//   data       the input of chunk c > 0 is there: computed here or received; its gradient likewise
//   transfers  every send meets its receive, in the same order on both sides
//   deadlock   with each rank issuing in order, each receive waiting for its send and each gather
//              and reduction for all ranks that run the chunk, all finish, whatever their speeds
//   parameters where chunks are gathered, all are: before each use, not twice, freed after the last
//              use and before the update, which would leave old values; or gathered after the
//              update and present in the whole of the next step
//   reduction  where gradients are reduced, each microbatch's of each chunk is, once: by a
//              reduction that names it, before another adds to the same sum, or by one of the whole
//              step; after the backward, before the update. A chunk that several ranks or replicas
//              run must be reduced
//   update     every chunk is updated once, after its last backward
//   snapshot   ends the step where one was asked for
#pragma once

#include <string>
#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

std::vector<std::string> schedule_faults(const Schedule& schedule, const StepWork& work);
void verify(const Schedule& schedule, const StepWork& work);  // throws if there are any

}  // namespace troupe
