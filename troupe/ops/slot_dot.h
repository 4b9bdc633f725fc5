// The gradient of a weight that scaled a routed row: kernels/slot_dot has the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/ops/support/plan.h"

namespace troupe {

// rows [R, D], x [T, D]; returns [T, K], f32 (f64 for f64). Has no gradient of its own.
at::Tensor slot_dot(const at::Tensor& rows_RD, const at::Tensor& x_TD, const Plan& plan);

}  // namespace troupe
