// The optimizer's step over one tensor: kernels/adamw.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace troupe {

struct AdamWTensors {
  at::Tensor param;                     // f32 (f64 on the CPU); beside `remainder` bf16
  at::Tensor m, v;                      // f32 or bf16; uint8: codes (core/number/moment8.h)
  std::optional<at::Tensor> copy = {};  // bf16 or f16: the parameter rounded, for the model
  // int16: the low halves of f32 parameters whose high halves `param` has
  // (core/number/split_f32.h); then there is no copy.
  std::optional<at::Tensor> remainder = {};
  // Of codes: f32 [ceil(N / 256)], for 256 elements each from the first on.
  std::optional<at::Tensor> m_scale = {}, v_scale = {};
};

struct AdamWOptions {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
};

// Writes all of state, contiguous and of one size; grad of any float type.
// grad_scale f32 [1], on the device: where it is not finite nothing is written. step counts from 1.
void adamw_(const AdamWTensors& state, const at::Tensor& grad,
            const std::optional<at::Tensor>& grad_scale, int64_t step, const AdamWOptions& options);

}  // namespace troupe
