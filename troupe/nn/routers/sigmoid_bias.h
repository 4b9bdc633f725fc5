// Independent scores with an expert bias that balances without a loss (rules R6 to R10):
// DeepSeek-V3.
//   s = sigmoid(z) or sqrt(softplus(z)),  I = top-k of s + b,
//   p = scale s[I] / (sum s[I] + 1e-20), and scale s[I] for k = 1
// After each optimizer step, with N_e the assignments to expert e of all microbatches and ranks,
// before dropping: b_e += rate sign(mean(N) - N_e); then, if `centre`, mean(b) is subtracted. b is
// f32 state: saved, never seen by the optimizer, unchanged by evaluation and by skipped steps.
#pragma once

#include "troupe/nn/routers/topk_softmax.h"

namespace troupe {

enum class IndependentScore { kSigmoid, kSqrtSoftplus };
constexpr auto names_of(IndependentScore) {
  return std::array{Named{"sigmoid", IndependentScore::kSigmoid},
                    Named{"sqrtsoftplus", IndependentScore::kSqrtSoftplus}};
}

struct SigmoidBiasRouting {
  static constexpr std::string_view kKind = "sigmoid_bias";
  IndependentScore score = IndependentScore::kSigmoid;
  double bias_rate = 1e-3;  // 0: b stays as it is
  bool centre = false;
  double p_norm = 0;  // 0: the sum, as above
  double scale = 1;
  GroupsConfig limit;
  GateConfig gate;
  BalanceConfig balance;

  static void visit(auto& c, auto&& f) {
    f("score", c.score);
    f("bias_rate", c.bias_rate);
    f("centre", c.centre);
    f("p_norm", c.p_norm);
    f("scale", c.scale);
    f("limit", c.limit);
    GateConfig::visit(c.gate, f);
    f("balance", c.balance);
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
};

// R10's step: b [E] f32, counts [E] int64 over the step and all ranks.
void update_bias(at::Tensor bias_E, const at::Tensor& counts_E, double rate, bool centre);

}  // namespace troupe
