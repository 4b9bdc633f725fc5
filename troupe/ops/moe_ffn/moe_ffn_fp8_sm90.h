// The Hopper path of ops/moe_ffn/moe_ffn_fp8: products of 8-bit operands on the tensor cores
// (kernels/moe_sm90), for bf16 SwiGLU experts on a GPU of compute capability 9.0.
#pragma once

#include <array>
#include <string>

#include "troupe/ops/moe_ffn/fp8_sm90.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"
#include "troupe/ops/moe_ffn/moe_ffn_paths.h"
#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"

namespace troupe {

// Why a layer of experts cannot take this path; empty: it can.
std::string fp8_sm90_fault(const Sm90Form& form);

// What backward reads: the tokens' rows and the transposed weights in 8 bits, with their scales,
// and H in bf16, in the order of kernels/moe_sm90. x and x_scales are of weight gradients in 8 bits
// alone.
struct Fp8Kept {
  at::Tensor x, x_scales, hidden, w1t, w1_scales, w2t, w2_scales;
};

struct Fp8Forward {
  at::Tensor out;  // [T, D]
  Fp8Kept kept;    // undefined where nobody asks for it
};
// The forward pass of recipe row, whose kernels round the activations that they compute. Weights
// come from `fp8.kept` where there is one, and are rounded here otherwise.
Fp8Forward fp8_forward_sm90(const FfnCall& call, bool keep, const Fp8Options& fp8);

struct Fp8Backward {
  const at::Tensor& grad_out;  // [T, D]
  const at::Tensor& x;         // [T, D]; undefined with weight_grad
  const at::Tensor& weights;   // [T, K]
  const Plan& plan;
  const Fp8Kept& kept;
  bool weight_grad;           // as Fp8Options's
  std::array<bool, 4> needs;  // of x, weights, w1, w2
};
// Undefined where not needed.
std::array<at::Tensor, 4> fp8_backward_sm90(const Fp8Backward& call);

// What gradients of weights read of a backward whose other half is done: of dH and A the columns in
// 8 bits, or without weight_grad themselves; undefined where the weight's gradient is not needed.
struct Fp8Between {
  Fp8Sm90::Rows grad_out;
  Fp8Sm90::Tiles grad_hidden, act;
  at::Tensor grad_hidden_wide, act_wide;
};
// The same backward in two halves: gradients of x and weights, then of w1 and w2. The second has
// `needs` of its own two alone, which the first was told as well.
struct Fp8RowsHalf {
  std::array<at::Tensor, 4> grads;
  Fp8Between left;
};
Fp8RowsHalf fp8_rows_backward_sm90(const Fp8Backward& call);
std::array<at::Tensor, 4> fp8_weights_backward_sm90(const Fp8Backward& call,
                                                    const Fp8Between& left);

}  // namespace troupe
