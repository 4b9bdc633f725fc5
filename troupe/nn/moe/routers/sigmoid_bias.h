// Independent scores with an expert bias that balances without a loss (rules R6 to R10):
// DeepSeek-V3.
//   s = sigmoid(z) or sqrt(softplus(z)), or softmax(z) (ERNIE 4.5),  I = top-k of s + b,
//   p = scale s[I] / (sum s[I] + 1e-20), and scale s[I] for k = 1
// After each optimizer step, with N_e the assignments to expert e of all microbatches and ranks,
// before dropping: b_e += rate sign(mean(N) - N_e); then, if `center`, mean(b) is subtracted. b is
// f32 state: saved, never seen by the optimizer, unchanged by evaluation and by skipped steps.
#pragma once

#include "troupe/core/config/facts.h"
#include "troupe/nn/moe/routers/topk_softmax.h"

namespace troupe {

enum class IndependentScore { kSigmoid, kSqrtSoftplus, kSoftmax };
constexpr auto names_of(IndependentScore) {
  return std::array{Named{"sigmoid", IndependentScore::kSigmoid},
                    Named{"sqrtsoftplus", IndependentScore::kSqrtSoftplus},
                    Named{"softmax", IndependentScore::kSoftmax}};
}

struct SigmoidBiasRouting {
  static constexpr std::string_view kKind = "sigmoid_bias";
  static constexpr std::string_view kHelp =
      "independent scores, with a bias per expert that balances the load (DeepSeek-V3)";
  IndependentScore score = IndependentScore::kSigmoid;
  double bias_rate = 1e-3;  // 0: b stays as it is
  bool center = false;
  double p_norm = 0;  // 0: the sum, as above
  double scale = 1;
  GroupsConfig limit;
  GateConfig gate;
  BalanceConfig balance;

  static void visit(auto& c, auto&& f) {
    f("score", c.score, "Score of an expert's logit; softmax: over all experts (ERNIE 4.5).");
    f("bias_rate", c.bias_rate, "Step size of the balancing bias; 0: off.");
    f("center", c.center, "Subtracts the mean from the balancing bias after each step.",
      OldName{"centre"});
    f("p_norm", c.p_norm, "p of the norm by which a token's weights are divided; 0: off.");
    f("scale", c.scale, "Factor on the router weights.");
    f("limit", c.limit,
      "Group-limited routing: a token chooses within its best groups of experts.");
    GateConfig::visit(c.gate, f);
    f("balance", c.balance, "Load balancing losses; coefficients, 0: off.");
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
};

// R10's step: b [E] f32, counts [E] int64 over the step and all ranks.
void update_bias(at::Tensor bias_E, const at::Tensor& counts_E, double rate, bool center);

}  // namespace troupe
