// A rank's shard meshes: which ranks shard and replicate the state of a parameter, by the box of it
// that they hold.
//
//   dense      whole on tensor ranks, or cut over all or some of them
//   tables     an embedding or head that two stages read: a copy of its state at each end, cut over
//              that stage's own ranks; the ends are replicas of each other, and their gradients are
//              summed together, so that no stage's gather waits for another stage (PL12)
//   experts    cut by expert ranks, and by slices of the hidden width
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

// Creates groups: all ranks call it, once, in the same order among what creates groups.
// `experts`: between which experts are shared, null where each has all; `unit_ranks`: the stage rank
// of each unit, empty for one stage.
Sharing share_state(const ParallelState& state, const ResolvedRun& run,
                    const std::shared_ptr<ProcessGroup>& experts,
                    const std::vector<int>& unit_ranks);

}  // namespace troupe
