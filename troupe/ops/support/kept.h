// What an operator keeps for its backward, for tests and reports of memory (rule M1).
#pragma once

#include <functional>

#include "troupe/ops/support/autograd.h"

namespace torch::autograd {
struct Node;
}

namespace troupe {

// The tensors that the node which made `result` holds, in the order of Record::saved. Throws where
// the node is not one of ours, or its backward has run.
TensorList kept_for_backward(const at::Tensor& result);

// f of each tensor that a node of ours holds, as it holds it: the same TensorImpl, one call for
// each reference. False: the node is not one of ours.
bool visit_kept(const torch::autograd::Node& node, const std::function<void(const at::Tensor&)>& f);

}  // namespace troupe
