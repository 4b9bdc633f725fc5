// What dispatchers between processes have in common: checks, and the plan of the rows that came.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/group/group.h"
#include "troupe/distributed/params/placement.h"
#include "troupe/ops/routing_plan.h"

namespace troupe {

// C7: ids [S, K] of a rank's source rows: the first `budget` slots that have an expert, by (source
// row, slot), keep it; the others become -1 and are added to `lost`, an int64 scalar. Budget 0:
// room for all, and `lost` stays as it is.
at::Tensor within_budget(const at::Tensor& ids_SK, int64_t budget, at::Tensor& lost);

// routing_plan over the experts of a rank, of which there may be none: then no row has a place.
// `routed`: at most so many ids have an expert, which the host knows; -1: any may. Buffers of rows
// are sized by it: S K is the ranks' number times too many.
Plan plan_of_rank(const at::Tensor& ids_SK, const PlanOptions& options, int64_t routed = -1);

// Throws where ids and scores are not [T, K] for the T rows of x.
void check_routed(const Routed& routed, const at::Tensor& x_TD);

// Throws where a placement is not over as many ranks as the group has.
void check_placed_on(const Placement& placement, const RankGroup& ranks);

}  // namespace troupe
