// How an auxiliary loss enters the backward pass: by an edge that is the identity forward (A7).
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// Returns y itself in value, without a copy. Backward hands y its gradient unchanged and the loss
// the gradient `weight`: the total is then differentiated as if weight * loss had been added to the
// step's loss, wherever that is. The weight is 1 / (D M) times the loss scale (rules A7, D1).
// The loss is a scalar. Where nothing follows y in the step's graph, the loss has no effect.
at::Tensor with_loss(const at::Tensor& y, const at::Tensor& loss, double weight);

}  // namespace troupe
