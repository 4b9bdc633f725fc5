// Sinkhorn routing (rule R12, S-BASE): in training I = top-k of z + v, where exp(z + u + v) has
// rows of sum 1 / n and columns of sum 1 / E over the n valid tokens of this rank, or of all of G;
// in evaluation the top-k of the activation. The search is ops/sinkhorn's: one kernel, nothing
// waits for it.
//   p = scale sigmoid(z)[I] for k = 1, else scale softmax(z)[I] over all E, not renormalized
// No gradient goes through u and v. Excludes balance losses and a capacity; the z-loss is allowed.
#pragma once

#include "troupe/nn/moe/group_rows.h"
#include "troupe/nn/moe/routers/gate.h"

namespace troupe {

struct SinkhornRouting {
  static constexpr std::string_view kKind = "sinkhorn";
  static constexpr std::string_view kHelp =
      "Sinkhorn iterations balance the choices (S-BASE, Megatron-LM)";
  double tolerance = 1e-4;  // of the mean change of v; below 0: always max_iterations
  int64_t max_iterations = 100;
  RoutingScope scope = RoutingScope::kRank;
  double scale = 1;
  double z_loss = 0;
  GateConfig gate;

  static void visit(auto& c, auto&& f) {
    f("tolerance", c.tolerance, "Sinkhorn stops when the change is smaller; below 0: never.");
    f("max_iterations", c.max_iterations, "Maximum number of Sinkhorn iterations.");
    f("scope", c.scope, "Tokens considered: this rank's, or the group's.");
    f("scale", c.scale, "Factor on the router weights.");
    f("z_loss", c.z_loss, "Router z-loss coefficient: mean squared logsumexp of the logits.");
    GateConfig::visit(c.gate, f);
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
};

}  // namespace troupe
