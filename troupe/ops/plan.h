// A routing plan as tensors: what ops/routing_plan returns and the ops over routed rows take.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

// All tensors live where the tokens do. R is the host's bound on the number of rows.
struct Plan {
  at::Tensor expert_offset;  // int32 [E + 1]
  at::Tensor row_src;        // int32 [R]
  at::Tensor row_slot;       // int32 [R]
  at::Tensor slot_row;       // int32 [T, K]
  at::Tensor counts;         // int64 [E]
};

// The same as kernels read it; valid while the tensors live. `op` begins the message of a refusal.
PlanRef plan_ref(const Plan& plan, const char* op);

}  // namespace troupe
