// Cumulative sums of integers along a dimension: kernels/cumsum.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// x int16, int32 or int64 of one or two dimensions; results in x's type and shape.
at::Tensor inclusive_cumsum(const at::Tensor& x, int64_t dim);
at::Tensor exclusive_cumsum(const at::Tensor& x, int64_t dim);

}  // namespace troupe
