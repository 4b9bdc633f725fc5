// Builds the routing plan of a layer from the chosen experts: kernels/routing_plan has the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/ops/plan.h"

namespace troupe {

struct PlanOptions {
  int64_t experts;
  int64_t alignment = 1;  // P3: each expert's rows are a multiple of this
  int64_t capacity = 0;   // C6: each expert has exactly so many rows; 0: as many as it needs
};

// ids int32 [T, K]; -1, or any id outside [0, E), has no row. No gradient, no wait for the device.
Plan routing_plan(const at::Tensor& ids_TK, const PlanOptions& options);

}  // namespace troupe
