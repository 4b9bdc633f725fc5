// The plan of a dense layer: all rows go to one expert.
#pragma once

#include "troupe/ops/support/plan.h"

namespace troupe {

// x [T, D]: row t is token t.
Plan dense_plan(const at::Tensor& x_TD);

}  // namespace troupe
