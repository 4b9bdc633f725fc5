// The norm of gradients and the factor that clips them, without a word to the host:
// kernels/grad_norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace troupe {

// Sum of squares of all elements, f64 [1], in the tensors' order. No tensors: 0 on the CPU.
at::Tensor sum_squares(const std::vector<at::Tensor>& tensors);

// {scale, norm} for the sum over all ranks, f32 [1]. scale = min(1, max_norm / (norm + 1e-6)), or
// NaN where the norm is not finite, on which adamw_ does nothing.
std::pair<at::Tensor, at::Tensor> clip_scale(const at::Tensor& sum_squares, double max_norm);

}  // namespace troupe
