// One AdamW step over one tensor; the formula is in kernels/adamw.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace troupe {

struct AdamWTensors {
  at::Tensor param;                     // f32 (f64 on the CPU), or bf16 beside `remainder`
  at::Tensor m, v;                      // f32, bf16, or uint8 codes (core/number/moment8.h)
  std::optional<at::Tensor> copy = {};  // bf16 or f16: the new parameter, rounded, for the model
  // int16: the low halves of f32 parameters; `param` then has the high halves, and there is no
  // `copy` (core/number/split_f32.h).
  std::optional<at::Tensor> remainder = {};
  // For uint8 moments: f32 [ceil(N / 256)], a scale for each 256 elements.
  std::optional<at::Tensor> m_scale = {}, v_scale = {};
};

struct AdamWOptions {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
};

// What a step multiplies with.
std::vector<float> adamw_constants(int64_t step, const AdamWOptions& options);

// Updates the tensors of `state` in place; they are contiguous and of one size. grad has any float
// type. grad_scale: f32 [1] on the device; if it is not finite nothing is written. step: from 1.
void adamw_(const AdamWTensors& state, const at::Tensor& grad,
            const std::optional<at::Tensor>& grad_scale, int64_t step, const AdamWOptions& options);
// The same bits, of adamw_constants() as a tensor, which is read where the step runs: a replay of a
// CUDA graph takes what is there then.
void adamw_(const AdamWTensors& state, const at::Tensor& grad,
            const std::optional<at::Tensor>& grad_scale, const at::Tensor& constants);

}  // namespace troupe
