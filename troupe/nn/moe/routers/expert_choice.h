// Expert choice (rule R13, Zhou et al. 2022): experts choose tokens.
//   s = softmax or sigmoid of z;  expert e takes its C = min(n, ceil(n rho / E)) best tokens, by
//   column of s, ties to the lower token;  p_te = s_te for the pairs taken, divided by the token's
//   sum if `normalize`;  rho = mean experts a token, by default k
// A token gets 0 to E experts, so ids are [T, E] with -1 where an expert did not take it. Each
// expert gets exactly C of the n valid tokens, of this rank or of all of G (ops/expert_choice).
// Balance losses have no gradient here and are refused; the z-loss is allowed. The choice looks at
// later tokens: it is not causal.
#pragma once

#include "troupe/core/config/facts.h"
#include "troupe/nn/moe/group_rows.h"
#include "troupe/nn/moe/routers/table.h"

namespace troupe {

struct ExpertChoiceRouting {
  static constexpr std::string_view kKind = "expert_choice";
  static constexpr std::string_view kHelp = "experts choose tokens";
  static constexpr bool kCausal = false;
  static constexpr bool kEven = true;
  double rho = 0;  // 0: top_k
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = false;
  RoutingScope scope = RoutingScope::kRank;
  double scale = 1;
  double z_loss = 0;
  GateConfig gate;

  static void visit(auto& c, auto&& f) {
    f("rho", c.rho, "Tokens per expert as a multiple of T / E; 0: top_k.");
    f("score", c.score, "Score function that weighs the choices.");
    f("normalize", c.normalize, "Divides a token's weights by their sum.", OldName{"normalise"});
    f("scope", c.scope, "Tokens considered: this rank's, or the group's.");
    f("scale", c.scale, "Factor on the router weights.");
    f("z_loss", c.z_loss, "Router z-loss coefficient: mean squared logsumexp of the logits.");
    GateConfig::visit(c.gate, f);
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
};

}  // namespace troupe
