// Builds the routing plan of a layer from the chosen experts: kernels/routing_plan has the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "troupe/ops/support/plan.h"

namespace troupe {

struct PlanOptions {
  int64_t experts;
  int64_t alignment = 1;  // P3: each expert's rows are a multiple of this
  int64_t capacity = 0;   // C6: each expert has exactly so many rows; 0: as many as it needs
};

// ids int32 or int64 [T, K]; -1, or any id outside [0, E), has no row. No gradient, no wait for the
// device.
Plan routing_plan(const at::Tensor& ids_TK, const PlanOptions& options);

// The same with the plan's tiles of `height` rows, for kernels that take one tile a block.
struct PlanTiles {
  at::Tensor list;   // int32 [bound, 2]: (expert, first row); entries past `count` mean nothing
  at::Tensor count;  // int32 [1]
};
std::pair<Plan, PlanTiles> routing_plan_tiles(const at::Tensor& ids_TK, int64_t height,
                                              const PlanOptions& options);

}  // namespace troupe
