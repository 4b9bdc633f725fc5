// The paths of ops/moe_ffn/moe_ffn behind one pair of functions each: moe_ffn_cpu.cpp,
// moe_ffn_cuda.cpp and moe_ffn_sm90.cpp.
#pragma once

#include <array>

#include "troupe/kernels/activation/activation.h"
#include "troupe/ops/moe_ffn/moe_ffn.h"
#include "troupe/ops/support/view.h"

namespace troupe {

struct FfnCall {
  const at::Tensor& x;        // [T, D]
  const at::Tensor& weights;  // [T, K], f32; f64 beside an x of f64
  const Plan& plan;
  const ExpertWeights& experts;
  ActivationKind kind;
  bool gated;
  WeightLayout layout = {};

  int64_t tokens() const { return x.size(0); }
  int64_t width() const { return x.size(1); }
  int64_t num_experts() const { return experts.w2.size(0); }
  int64_t hidden() const { return experts.w2.size(layout.down_columns ? 1 : 2); }
  int64_t hidden_columns() const { return gated ? 2 * hidden() : hidden(); }
  int64_t rows() const { return plan.row_src.size(0); }
};

// Refuses what does not fit together: sizes, types and devices of the arguments and the plan, with
// weights in their own order.
void check_ffn(const at::Tensor& x, const at::Tensor& weights, const Plan& plan,
               const ExpertWeights& experts);

struct FfnForward {
  at::Tensor out;     // [T, D]
  at::Tensor hidden;  // [R, 2F] or [R, F], in x's type
};

// The order of gradients everywhere: x, weights, w1, b1, w2, b2, up. Undefined: not wanted.
constexpr int kNumFfnGradients = 7;
using FfnNeeds = std::array<bool, kNumFfnGradients>;
using FfnGradTensors = std::array<at::Tensor, kNumFfnGradients>;

// Weights [E, X, Y] as the matrix [E X, Y] that the grouped kernels take.
inline MatRef flat_view(const at::Tensor& w, const char* name) {
  return view(w.view({w.size(0) * w.size(1), w.size(2)}), name);
}
inline MutRef flat_out(const at::Tensor& w, const char* name) {
  return mut_view(w.view({w.size(0) * w.size(1), w.size(2)}), name);
}

// With hidden_only, out stays undefined.
FfnForward ffn_forward_cpu(const FfnCall& call, bool hidden_only);
FfnForward ffn_forward_cuda(const FfnCall& call, bool hidden_only);

// With `overwrite` nobody reads hidden again: on the CPU it is left as its own gradient, on CUDA
// without memory (give_back.h).
FfnGradTensors ffn_backward_cpu(const FfnCall& call, const at::Tensor& grad_out,
                                const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite);
FfnGradTensors ffn_backward_cuda(const FfnCall& call, const at::Tensor& grad_out,
                                 const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite);

// The same backward in halves, the same bits: the gradients of x and of the scores, and then, of
// what that leaves, those of weights. Both are given all needs.
struct FfnBetween {
  at::Tensor grad_hidden;   // as hidden
  at::Tensor act;           // [R, F]: A
  at::Tensor grad_b2 = {};  // where it is made with the scores'
};
struct FfnRowsHalf {
  FfnGradTensors grads;
  FfnBetween between;
};
FfnRowsHalf ffn_rows_backward_cpu(const FfnCall& call, const at::Tensor& grad_out,
                                  const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite);
FfnRowsHalf ffn_rows_backward_cuda(const FfnCall& call, const at::Tensor& grad_out,
                                   const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite);
FfnGradTensors ffn_weights_backward_cpu(const FfnCall& call, const at::Tensor& grad_out,
                                        const FfnBetween& between, const FfnNeeds& needs);
FfnGradTensors ffn_weights_backward_cuda(const FfnCall& call, const at::Tensor& grad_out,
                                         const FfnBetween& between, const FfnNeeds& needs);

}  // namespace troupe
