// The experts' biases (rule X6), kernels/group_bias: y[r] = x[r] + score[r] bias[e(r)].
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace troupe {

// x [R, D], bias [E, D] of x's type, expert_offset int32 [E + 1], score f32 (f64 beside f64) [R] or
// none. Rows past the last expert's stay x. Gradients for x, bias and score.
at::Tensor group_bias(const at::Tensor& x_RD, const at::Tensor& bias_ED,
                      const at::Tensor& expert_offset,
                      const std::optional<at::Tensor>& score_R = {});

}  // namespace troupe
