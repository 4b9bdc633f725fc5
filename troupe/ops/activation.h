// The experts' activation with its clamp and offset, and the combine weight multiplied in: rules X1
// to X4, kernels/activation.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <optional>
#include <string>

namespace troupe {

struct ActivationOptions {
  std::string kind = "silu";  // silu, gelu, gelu_tanh, quick_gelu, relu, relu2
  bool gated = true;          // h holds F gate columns, then F up columns
  double clamp = std::numeric_limits<double>::infinity();
  double offset = 0;
};

struct RowScale {
  std::optional<at::Tensor> score_R = {};        // f32 (f64 beside f64), a factor for each row
  std::optional<at::Tensor> expert_offset = {};  // int32 [E + 1]; rows past the last give zeros
};

// h [.., 2F] or [.., F]; returns [.., F]. Gradients for h and the score.
at::Tensor activation(const at::Tensor& h, const ActivationOptions& options,
                      const RowScale& rows = {});

}  // namespace troupe
