// What an operator keeps for its backward, for tests and reports of memory (rule M1).
#pragma once

#include "troupe/ops/support/autograd.h"

namespace troupe {

// The tensors that the node which made `result` holds, in the order of Record::saved. Throws where
// the node is not one of ours, or its backward has run.
TensorList kept_for_backward(const at::Tensor& result);

}  // namespace troupe
