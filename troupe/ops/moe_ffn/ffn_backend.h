// The arithmetic of routed experts as five calls. One driver (ffn_driver.h) puts them in order; the
// paths implement them and nothing else: moe_ffn_cpu_tensors.cpp, moe_ffn_cuda.cpp and
// moe_ffn_sm90.cpp, with products of 8-bit operands moe_ffn_fp8_passes.cpp and
// moe_ffn_fp8_sm90.cpp.
//
//   up           H = W1 x + b1, A = s act(H)
//   down         Y = W2 A + s b2, summed over a token's rows
//   hidden_grad  dA = W2^T dO; of it and H: dH, the scores' gradients, A again
//   rows_grad    dX = W1^T dH, summed over a token's rows; the scores' gradients in their places
//   weight_grad  dW1 = dH^T x, dW2 = dO^T A, db1, db2
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "troupe/kernels/activation/activation.h"
#include "troupe/ops/moe_ffn/moe_ffn.h"
#include "troupe/ops/support/view.h"

namespace troupe {

struct FfnCall {
  at::Tensor x;        // [T, D]
  at::Tensor weights;  // [T, K], f32; f64 beside an x of f64
  Plan plan;
  ExpertWeights experts;
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

// The differentiable inputs, in the order of gradients everywhere.
struct FfnInput {
  enum : size_t { kX, kScores, kW1, kB1, kW2, kB2, kUp };
  static constexpr size_t kCount = 7;
  static constexpr size_t kFirstWeight = kW1;
};
using FfnNeeds = std::array<bool, FfnInput::kCount>;
using FfnGradTensors = std::array<at::Tensor, FfnInput::kCount>;  // undefined: not made

// Weights [E, X, Y] as the matrix [E X, Y] that the grouped kernels take.
inline MatRef flat_view(const at::Tensor& w, const char* name) {
  return view(w.view({w.size(0) * w.size(1), w.size(2)}), name);
}
inline MutRef flat_out(const at::Tensor& w, const char* name) {
  return mut_view(w.view({w.size(0) * w.size(1), w.size(2)}), name);
}

// H, and the operands of down.
struct FfnUp {
  at::Tensor hidden;           // [R, 2F] or [R, F], in x's type
  at::Tensor act = {};         // A [R, F]
  at::Tensor act_scales = {};  // of an A in 8 bits
  at::Tensor scores = {};      // [R, 1], where down scales b2
  at::Tensor rows = {};        // Y [R, D], where up makes it too (CPU: its operands are in cache)
};

struct FfnHiddenGrad {
  const at::Tensor& grad_out;  // [T, D]
  const at::Tensor& hidden;    // as up left it
  FfnNeeds needs;              // of inputs that the call has
  bool overwrite = false;      // nobody reads hidden again: its memory may be taken or freed
  bool weights_later = false;  // weight_grad runs in another half: its operands are held until then
};

struct Fp8Between;  // moe_ffn_fp8_sm90.h

// The operands of rows_grad and weight_grad. A path defines those that it reads.
struct FfnBetween {
  FfnNeeds needs = {};                         // gradients that are not made yet
  FfnGradTensors grads = {};                   // gradients that hidden_grad has made
  at::Tensor grad_out = {};                    // dO
  at::Tensor grad_hidden = {};                 // dH, as hidden
  at::Tensor hidden = {};                      // H, where weight_grad computes A of it
  at::Tensor act = {};                         // A [R, F]
  at::Tensor grad_scores = {};                 // [R, 1]: of rows
  at::Tensor grad_rows = {};                   // [R, D]: the rows whose sums are dX
  std::shared_ptr<Fp8Between> in_8_bits = {};  // dO, dH and A as products of bytes read them
};

// Parts of a backward behind hidden_grad.
enum class FfnStep {
  kRows,     // rows_grad: x, scores
  kUp,       // weight_grad: w1, b1, up
  kDown,     // weight_grad: w2, b2
  kWeights,  // weight_grad: both, in one call
};

// One call with its operands made ready. Nothing changes between calls but FfnBetween.
class FfnBackend {
 public:
  FfnBackend() = default;
  FfnBackend(const FfnBackend&) = delete;
  FfnBackend& operator=(const FfnBackend&) = delete;
  virtual ~FfnBackend() = default;

  virtual FfnUp up(bool hidden_only) const = 0;  // hidden_only: down does not follow
  virtual at::Tensor down(const FfnUp& up) const = 0;
  virtual FfnBetween hidden_grad(const FfnHiddenGrad& of) const = 0;
  // `needs`: of these inputs, whose gradients are not in between.grads. Operands that no later step
  // reads may be dropped.
  virtual FfnGradTensors rows_grad(const FfnNeeds& needs, FfnBetween& between) const = 0;
  virtual FfnGradTensors weight_grad(const FfnNeeds& needs, FfnBetween& between) const = 0;

  // A whole backward's steps in their order: it decides what is held at once. Two halves have the
  // same, kRows taken out of the second.
  virtual std::vector<FfnStep> order() const = 0;
};

std::unique_ptr<FfnBackend> cpu_ffn(const FfnCall& call);
// On a GPU: Hopper's fused kernels where they fit (moe_ffn_sm90.h).
std::unique_ptr<FfnBackend> cuda_ffn(const FfnCall& call);

}  // namespace troupe
