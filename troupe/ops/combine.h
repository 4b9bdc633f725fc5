// Sums each token's rows over its experts: kernels/combine has the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troupe/ops/support/plan.h"

namespace troupe {

// y [R, D], weights [T, K] f32 (f64 beside f64) or absent, addend [T, D] in y's type or f32 or
// absent; returns [T, D] in y's type. Differentiable in all three.
at::Tensor combine(const at::Tensor& y_RD, const Plan& plan,
                   const std::optional<at::Tensor>& weights_TK = std::nullopt,
                   const std::optional<at::Tensor>& addend_TD = std::nullopt);

}  // namespace troupe
