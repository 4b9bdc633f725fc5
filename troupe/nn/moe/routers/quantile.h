// Quantile balancing (rule R11): I = top-k of z - beta, with beta moved after each step to where
// the counts of this step's logits would have been equal.
//   per microbatch, over the n valid tokens of G (ops/quantile):
//     alpha_t = the (k + 1)-th largest of z - beta in row t
//     new_e   = the (floor(n k / E) + 1)-th largest of z - alpha in column e
//   after the step: beta = ema beta + (1 - ema) mean of new over microbatches and replicas; then
//   its mean is subtracted
// Weights as topk_softmax's or sigmoid_bias' on I. Excludes balance losses and groups; needs k < E.
#pragma once

#include "troupe/nn/moe/routers/table.h"

namespace troupe {

struct QuantileRouting {
  static constexpr std::string_view kKind = "quantile";
  static constexpr std::string_view kHelp = "a threshold per expert that balances the load";
  double ema = 0;
  RouterScore score = RouterScore::kSoftmax;
  SoftmaxOrder order = SoftmaxOrder::kAuto;  // softmax alone
  double scale = 1;
  double z_loss = 0;
  GateConfig gate;

  static void visit(auto& c, auto&& f) {
    f("ema", c.ema, "Decay of the threshold's moving average per step.");
    f("score", c.score, "Score function that weighs the choices.");
    f("order", c.order, "Softmax after the top-k choice (weights sum to 1) or before it.");
    f("scale", c.scale, "Factor on the router weights.");
    f("z_loss", c.z_loss, "Router z-loss coefficient: mean squared logsumexp of the logits.");
    GateConfig::visit(c.gate, f);
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
};

}  // namespace troupe
