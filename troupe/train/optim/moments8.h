// core/number/moment8.h over tensors of any device, in PyTorch's operators: for optimizers without
// a fused kernel, and for what a load brings. Temporaries are a few times the numbers' size in f32.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// codes uint8 [n], scales f32 [ceil(n / 256)]: the numbers, f32 [n].
at::Tensor moments_of(const at::Tensor& codes, const at::Tensor& scales, bool second);

// Writes codes and scales of x, f32 [n]; `dithered` with the dither of x itself, else to nearest.
void code_moments(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                  bool second, bool dithered);

}  // namespace troupe
