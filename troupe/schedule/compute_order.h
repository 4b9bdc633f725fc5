// The computations of a replica that lies whole in one rank, in their order: each microbatch goes
// forward through all chunks and back. A recomputed chunk goes forward lightly, and again just
// before its backward.
//   F0.0 L1.0 F2.0 B2.0 F1.0 B1.0 B0.0 F0.1 ...
#pragma once

#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

std::vector<Action> compute_order(const StepWork& work);

}  // namespace troupe
