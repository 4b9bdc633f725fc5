// Copies each token's row to the rows of its experts: kernels/permute has the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troupe/ops/support/plan.h"

namespace troupe {

// x [T, D], weights [T, K] f32 (f64 beside f64) or absent; returns [R, D] in x's type, R the plan's
// bound, zero where a row belongs to no token. Differentiable in x and weights.
at::Tensor permute(const at::Tensor& x_TD, const Plan& plan,
                   const std::optional<at::Tensor>& weights_TK = std::nullopt);

}  // namespace troupe
