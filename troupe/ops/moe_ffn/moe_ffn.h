// The experts' feed-forward over routed rows, whole: gather, up, activation, down, combine.
//
//   H[r]   = W1_e x[row_src[r]] + b1_e                          e: the expert of row r
//   A[r]   = s_r act(H[r])          s_r = weights[row_slot[r]]  (rule X1: before W2)
//   Y[r]   = W2_e A[r] + s_r b2_e
//   out[t] = sum over k of Y[slot_row[t, k]]                    in slot order, fp32, rounded once
//
// act is activation(g) * (u + offset) with H = [g | u] (gated) or activation(H)
// (kernels/activation). For backward it keeps x, by reference, and H: 2 T D + 4 R F bytes in bf16
// for a gated layer, and the routing; A is computed again from H. The gradient of s_r is a row
// product inside the backward of the activation, so no output row of an expert is kept for
// backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "troupe/ops/support/backward_order.h"
#include "troupe/ops/support/plan.h"

namespace troupe {

struct ExpertWeights {
  at::Tensor w1;                 // [E, 2F, D] (F gate rows, then F up rows): gated; or [E, F, D]
  std::optional<at::Tensor> b1;  // [E, 2F] or [E, F]
  at::Tensor w2;                 // [E, D, F]
  std::optional<at::Tensor> b2;  // [E, D]
  std::optional<at::Tensor> up = {};  // [E, F, D]: apart from the gate, which alone is then w1
};

// How others keep the same weights; products read them as they are, and gradients come the same
// way. On the CPU alone: elsewhere the caller reorders them.
struct WeightLayout {
  bool up_columns = false;    // w1 and up are [E, D, 2F] or [E, D, F]: in by out
  bool down_columns = false;  // w2 is [E, F, D]
  bool interleaved = false;   // gate and up take turns along w1's outputs and b1

  bool plain() const { return !up_columns && !down_columns && !interleaved; }
};

struct FfnOptions {
  std::string activation = "silu";
  double clamp = std::numeric_limits<double>::infinity();  // X4
  double offset = 0;
  WeightLayout layout = {};
  bool keep_hidden = true;    // false: H is computed again in backward (M2, level `expert`)
  int64_t input_bits = -1;    // Q1 `inputs`: x as kept for dW1, in 8 or 4 bits
  int64_t hidden_bits = -1;   // Q1 `rematerialize`: H as kept, in 8 or 4 bits
  at::Tensor saturated = {};  // int64 [1] or undefined: groups whose scale fp16 cannot hold (Q2)
  // Where in the backward gradients of weights are made, apart from those of x and of the scores,
  // which then come first: while those travel (OV5). Absent: with them.
  std::optional<BackwardOrder> weights_order = {};
};

// x [S, D], weights f32 [T, K]; returns [T, D] in x's type. Frozen parts cost nothing (X8).
at::Tensor moe_ffn(const at::Tensor& x_SD, const at::Tensor& weights_TK, const Plan& plan,
                   const ExpertWeights& experts, const FfnOptions& options);

}  // namespace troupe
