// What an operator's meta function asks of a plan that it is given.
#pragma once

#include "troupe/ops/support/plan.h"

namespace troupe {

// Sizes that fit each other, types, and all on the device of `beside`. `op` begins the message.
void check_plan(const Plan& plan, const at::Tensor& beside, const char* op);

}  // namespace troupe
