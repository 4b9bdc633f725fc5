// Experts change ranks, and all that belongs to them with them: values, f32 masters, the
// optimizer's state, also what of them is frozen.
#pragma once

#include <vector>

#include "troupe/distributed/params/param.h"
#include "troupe/distributed/params/placement.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

struct ExpertMove {
  std::vector<Param*> params = {};  // per expert, all of one layer
  Placement from, to;               // of `experts`; on each rank as many in both
};

// Between steps; each rank calls with the same moves. Rows go over `experts`, the ranks that share
// experts. A parameter's elements are then those of the experts that its rank holds under `to`, in
// their order; Param::experts is the caller's to change. Needs room for the largest bucket of moved
// experts, whole in f32, three times.
void move_experts(ParamStore& store, RankGroup& experts, const std::vector<ExpertMove>& moves);

}  // namespace troupe
