// What dispatchers between processes share: checks, and the plan of the received rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/params/expert_placement.h"
#include "troupe/ops/routing_plan.h"

namespace troupe {

// C7: ids [S, K] of a rank's source rows: the first `budget` slots that have an expert, by (source
// row, slot), keep it; the others become -1 and are added to `lost`, an int64 scalar. Budget 0:
// room for all, and `lost` stays as it is.
at::Tensor within_budget(const at::Tensor& ids_SK, int64_t budget, at::Tensor& lost);

// routing_plan over the experts of a rank, which may have none: then the plan is empty. `routed`:
// an upper bound of the ids that have an expert, if the host knows one; -1: it does not. It sizes
// the row buffers, which S K would make too large by a factor of the number of ranks.
Plan plan_of_rank(const at::Tensor& ids_SK, const PlanOptions& options, int64_t routed = -1);

// Throws if ids and scores are not [T, K] for the T rows of x.
void check_routed(const Routed& routed, const at::Tensor& x_TD);

// Throws if the placement and the group differ in their number of ranks.
void check_placed_on(const ExpertPlacement& placement, const ProcessGroup& ranks);

}  // namespace troupe
