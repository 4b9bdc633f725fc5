// Sums in f32 of numbers of a narrower type, in place: kernels/accumulate. PyTorch's own copy and
// addition between types reach less than half of a GPU's memory rate
// (docs/bench/2026-11-23-ranks.md).
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// sum (+)= x: f32, contiguous, of x's sizes; x of any float type but f64.
void accumulate_(const at::Tensor& sum, const at::Tensor& x, bool add);

}  // namespace troupe
