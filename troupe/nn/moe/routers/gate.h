// The product that all routers start with: logits z = x W^T + b_r (rule R1), on jittered input
// (R2), or forced ones (R3).
//
// Operands as stored (bf16 x and W are allowed), products and sums in f32, no TF32; in f64 where
// asked or where x is f64 (on CUDA the f64 logits are then rounded to f32, which is what its
// routing kernels take). W is [E, D], the same on all ranks. Noise is drawn where x is
// (ops/jitter).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "troupe/core/text/text.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/moe/routers/router.h"
#include "troupe/nn/parts/context.h"
#include "troupe/nn/parts/lora.h"

namespace troupe {

// Benchmark aids (R3): forced balance is not a training speed, and outputs say FORCED.
enum class Force {
  kNone,
  kUniform,  // expert (t K + k) mod E for slot k of token t, weights as routed
  kRandom,   // logits replaced by N(0, 1), the gradient passed straight through
  kBiased,   // one N(0, force_std) vector added to all logits, the same on all ranks
};
constexpr auto names_of(Force) {
  return std::array{Named{"none", Force::kNone}, Named{"uniform", Force::kUniform},
                    Named{"random", Force::kRandom}, Named{"biased", Force::kBiased}};
}

struct GateConfig {
  double jitter = 0;  // eps: the router alone sees x u, u uniform in [1 - eps, 1 + eps]
  bool bias = false;  // b_r
  bool fp64 = false;
  double std = 0.02;
  Force force = Force::kNone;
  double force_std = 1;
  bool force_fixed = false;  // biased: the same vector in every step
  LoraConfig lora = {};      // of model.lora, which sets it: no key of its own

  static void visit(auto& c, auto&& f) {
    f("jitter", c.jitter,
      "Input jitter eps in training: the router's input is multiplied by uniform [1 - eps, 1 + "
      "eps].");
    f("bias", c.bias, "Bias of the router logits.");
    f("fp64", c.fp64, "Router logits in f64 instead of f32.");
    f("std", c.std,
      "Standard deviation of the initial router weights; model.init_std takes precedence.");
    f("force", c.force, "Benchmarks only: forced expert choice. The log marks such runs FORCED.");
    f("force_std", c.force_std, "biased: standard deviation of the constant logit vector.");
    f("force_fixed", c.force_fixed, "biased: the same vector in every step.");
  }
};

// Logits, and x for whoever else reads it: the same memory. What flows back into that x is added to
// the product's own gradient as the product is made (dx = dz W + what came), in place where nobody
// else holds it, so that no pass over [T, D] adds the two.
struct Gated {
  at::Tensor z_TE;  // [T, E] f32 (or f64), with its gradient to x, W and b_r
  at::Tensor x_TD;  // x itself where its gradient is not asked for, or the gate sees a jittered x
};

class Gate {
 public:
  Gate(const GateConfig& config, const RouterShape& shape);

  Gated logits(const at::Tensor& x_TD, const Context& context) const;
  // The forced choices, or undefined: [T, K] int32.
  at::Tensor forced_ids(const at::Tensor& z_TE, int64_t top_k, const Context& context) const;
  bool forced() const { return config_.force != Force::kNone; }

  static void visit(auto& m, auto&& f) {
    f("weight", m.weight);
    f("bias", m.bias);
    if (m.lora) LoraFactors::visit(*m.lora, f);
  }

  Param weight;               // [E, D]
  std::optional<Param> bias;  // [E]
  std::optional<LoraFactors> lora;

 private:
  at::Tensor forced(const at::Tensor& z_TE, const Context& context) const;

  GateConfig config_;
};

// z = x W^T: the product of rule R1, in `type` (f32 or f64).
Gated router_product(const at::Tensor& x_TD, const at::Tensor& w_ED, at::ScalarType type);

}  // namespace troupe
