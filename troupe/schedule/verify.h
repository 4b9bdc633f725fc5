// Proves a schedule before it runs. Each fault is a line "rank 1, position 7 (B0.3): ..."; the
// Error holds all of them.
//
//   order      `after` names earlier positions; chunks, microbatches, peers exist
//   compute    a rank that runs a chunk runs all of its microbatches: one forward, then either one
//              backward or an input half followed by a weight half; at most one light forward,
//              before. Without training one light forward and nothing else. Where the work has
//              stages, each chunk runs on the rank of its stage
//   beside     a backward runs beside the forward that stands behind it, of another microbatch
//   data       the input of chunk c > 0 is there: computed here or received; its gradient likewise
//   transfers  every send meets its receive, in the same order on both sides of its channel; one
//              end runs the chunk, the other the one before it
//   deadlock   with each rank issuing in order, as deadlock.h says, all finish, whatever their
//              speeds
//   parameters where chunks are gathered, all are: before each use, not twice, freed after the last
//              use and before the update, which would leave old values; or gathered after the
//              update and present in the whole of the next step
//   reduction  where gradients are reduced, each microbatch's of each chunk is, once: by a
//              reduction that names it, before another adds to the same sum, or by one of the whole
//              step; after the backward, before the update. Parameters that several ranks or
//              replicas use must be
//   update     every chunk is updated once, after its last backward; all ranks have as many updates
//              of all chunks, at which they meet
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
