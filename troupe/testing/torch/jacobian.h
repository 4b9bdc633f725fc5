// One helper for all gradients: compares what backward computes with central differences.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace troupe::testing {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// Inputs are fp64 leaves. The result is weighed with fixed random numbers and summed, so that one
// backward pass tests all of the Jacobian's rows at once. Returns the largest difference over all
// inputs that require a gradient, relative to the largest gradient of that input (or 1).
double gradient_error(const Function& f, const Tensors& inputs, double step = 1e-6);

// The same as a test: the bound is rule G8's for fp64, widened by what central differences lose.
void expect_gradients(const Function& f, const Tensors& inputs, double bound = 2e-8);

}  // namespace troupe::testing
