// Expert capacity (rules C1 to C6, C8): off by default, which is dropless.
//
// How many an expert may take, which slots stay and what `renormalize` does: kernels/capacity.
// `pad` gives experts exactly C rows; sizes are then static, and pad rows add nothing. Losses,
// counts and biases use the choices before dropping. Off in evaluation unless asked.
//
// `scope`: an expert's share is of this rank's tokens, or of those of all of G in the order (rank,
// token). A budget (C7) bounds memory and not the result: a rank makes room for ceil(budget T K)
// rows, and a step in which more arrive is done again without it (train/step/learner.h). In training
// alone.
#pragma once

#include <array>
#include <cstdint>

#include "troupe/core/config/facts.h"
#include "troupe/core/text/text.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/nn/moe/group_rows.h"
#include "troupe/nn/moe/routers/router.h"
#include "troupe/ops/capacity.h"

namespace troupe {

constexpr auto names_of(DropPolicy) {
  return std::array{Named{"probs", DropPolicy::kProbs}, Named{"position", DropPolicy::kPosition}};
}

struct CapacityConfig {
  double factor = 0;  // phi; 0: none
  int64_t min = 1;    // C_min
  RoutingScope scope = RoutingScope::kRank;
  DropPolicy policy = DropPolicy::kProbs;
  bool pad = false;
  bool renormalize = false;
  bool in_evaluation = false;
  double budget = 0;  // phi_r; 0: room for all that can arrive

  static void visit(auto& c, auto&& f) {
    f("factor", c.factor,
      "Capacity factor: an expert takes ceil(factor T K / E) rows; 0: no limit.");
    f("min", c.min, "Minimum capacity in rows.");
    f("scope", c.scope, "Tokens T that the factor multiplies: this rank's, or the group's.");
    f("policy", c.policy, "Rows that are kept: the largest weights, or the first tokens.");
    f("pad", c.pad, "Pads every expert to its capacity.");
    f("renormalize", c.renormalize, "Rescales a token's remaining weights to the original sum.",
      OldName{"renormalise"});
    f("in_evaluation", c.in_evaluation, "Applies the capacity in evaluation too.");
    f("budget", c.budget,
      "Row buffer per rank, as a multiple of T K; a step that exceeds it is repeated without the "
      "limit.");
  }
};
void validate(const CapacityConfig& config, const Router& router);

struct Kept {
  Routed routed;
  at::Tensor dropped = {};  // int64 scalar, this rank's; undefined: nothing can drop
};

// What of the router's choices goes to the experts; `alignment` as Routed's.
Kept keep_within(const CapacityConfig& config, const RouterOutput& routed, const Tokens& tokens,
                 const Context& context, int64_t alignment);

}  // namespace troupe
