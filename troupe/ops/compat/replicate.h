// Spreads one value a bin over the elements of the bin: kernels/replicate.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// x [rows, E] of any element of 2, 4 or 8 bytes, bins int32 [E] inclusive sums; returns [rows, n].
// Differentiable in x where x is of a float type.
at::Tensor replicate(const at::Tensor& x, const at::Tensor& bins, int64_t num_outputs);

}  // namespace troupe
