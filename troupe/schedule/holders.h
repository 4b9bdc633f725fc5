// Whether the groups that sum a gradient reach each rank with the same parameters once: of a rank,
// the shards of its replicas, which are to be all that hold what it holds.
#pragma once

#include <string>
#include <vector>

#include "troupe/schedule/step_world.h"
#include "troupe/schedule/work.h"

namespace troupe {

std::vector<std::string> sharing_faults(const StepWork& work, const StepWorld& world);

}  // namespace troupe
