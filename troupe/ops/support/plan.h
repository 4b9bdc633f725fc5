// A routing plan as tensors: what ops/routing_plan returns and the ops over routed rows take.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

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

// A plan in an operator's schema: Tensor[] in the order of the fields, as ops/routing_plan returns
// it.
std::vector<at::Tensor> plan_tensors(const Plan& plan);
Plan plan_from(at::TensorList tensors, const char* op);

}  // namespace troupe
