// How often each value occurs in each row of an integer tensor: kernels/histogram.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// x int16, int32 or int64, [n] or [rows, n]; returns int32 [bins] or [rows, bins].
at::Tensor histogram(const at::Tensor& x, int64_t bins);

}  // namespace troupe
