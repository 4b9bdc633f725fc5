// Moves experts between ranks with all of their state: values, f32 masters, optimizer state, and
// frozen parameters.
#pragma once

#include <vector>

#include "troupe/distributed/params/expert_placement.h"
#include "troupe/distributed/params/param.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

struct ExpertMove {
  std::vector<Param*> params = {};  // per expert, all of one layer
  ExpertPlacement from, to;         // of `experts`; on each rank as many in both
};

// Call between steps, on every rank, with the same moves. Rows are exchanged in the group
// `experts`, the ranks that share experts. Afterwards a parameter has the elements of the experts
// that its rank holds under `to`, in their order; the caller changes Param::experts. Needs memory
// for three f32 copies of the largest bucket of moved experts.
void move_experts(ParamStore& store, ProcessGroup& experts, const std::vector<ExpertMove>& moves);

}  // namespace troupe
