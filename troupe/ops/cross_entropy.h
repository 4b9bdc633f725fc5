// Cross entropy with its z-loss (kernels/cross_entropy): of logits, and of a whole output head
// whose logits never exist together.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "troupe/ops/soft_targets.h"

namespace troupe {

struct CrossEntropyOptions {
  std::optional<at::Tensor> weight_T = {};  // f32 (f64 beside f64), a factor of each token's loss
  double z_loss = 0;
  int64_t ignore = -100;
};

// logits [T, V], target int64 [T]. Returns {loss, lse}, both f32 (f64 for f64) [T]; loss holds the
// z-loss, which alone is z_loss weight lse^2. Gradient for the logits, through the loss alone.
std::pair<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& logits_TV,
                                                const at::Tensor& target_T,
                                                const CrossEntropyOptions& options);

// The same of logits = x W^T, summed over the tokens: {sum of loss, lse}. x [T, D], W [V, D]. Works
// through `chunk` tokens at a time and computes the gradients of x and W on the way, so that
// backward only multiplies them: logits take chunk V elements, and W's gradient is summed in float.
std::pair<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x_TD,
                                                       const at::Tensor& weight_VD,
                                                       const at::Tensor& target_T,
                                                       const CrossEntropyOptions& options,
                                                       int64_t chunk = 1024);

// The same beside a teacher: the three sums of soft_targets.h. Gradients flow through `loss` alone.
// The teacher's logits are asked for in order, a part of a chunk at a time, whose temporary tensors
// together take less than the chunk's own logits do in float.
struct TaughtLoss {
  at::Tensor loss, ce, kl;
};
TaughtLoss taught_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& target_T, const CrossEntropyOptions& options,
                                const SoftTargets& soft, int64_t chunk = 1024);

}  // namespace troupe
