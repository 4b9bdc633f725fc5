// RMSNorm and LayerNorm, alone or after an addition: kernels/norm. On the CPU operators of this
// library that read the result keep nothing of it: backward makes it again
// (ops/support/autograd.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace troupe {

struct NormOptions {
  std::string kind = "rms";  // rms; rms_rounded: rounded before the weight, as Llama does; layer
  double eps = 1e-5;
};

// What a kind's name means to kernels/norm; an unknown name is an error.
enum class NormKind : uint8_t;  // kernels/norm
struct NamedNorm {
  NormKind kind;
  bool round;  // before the weight
};
NamedNorm named_norm(const std::string& kind);

// Over the last dimension of x; weight and bias [D] of x's type. Gradients for all that is given.
at::Tensor norm(const at::Tensor& x, const at::Tensor& weight_D,
                const std::optional<at::Tensor>& bias_D, const NormOptions& options);

// sum = x + residual, of which the norm is taken; returns {norm(sum), sum}.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& residual,
                                           const at::Tensor& weight_D,
                                           const std::optional<at::Tensor>& bias_D,
                                           const NormOptions& options);

}  // namespace troupe
