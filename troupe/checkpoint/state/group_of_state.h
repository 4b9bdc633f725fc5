// The ranks of a run as those that save and load its checkpoints.
#pragma once

#include "troupe/checkpoint/state/checkpoint_group.h"
#include "troupe/distributed/parallel_state/parallel_state.h"

namespace troupe {

// A save gathers on a background thread: what a step gathers meanwhile has topics of its own.
CheckpointGroup checkpoint_group(const ParallelState& state);

}  // namespace troupe
