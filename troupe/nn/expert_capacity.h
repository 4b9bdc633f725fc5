// Expert capacity (rules C1 to C6, C8): off by default, which is dropless.
//
//   C = min(n, max(min, ceil(factor n K / E - 1e-6))) assignments for each expert, per rank and
//   microbatch; the others of an expert are dropped: their slots give 0, and the token's other
//   weights stay as they are unless `renormalise`
//   policy probs      an expert keeps those of largest weight (ties: lower token)
//   policy position   those of lowest token
//   pad               experts get exactly C rows; sizes are static, and pad rows add nothing
// Losses, counts and biases use the choices before dropping. Off in evaluation unless asked.
#pragma once

#include <array>
#include <cstdint>

#include "troupe/core/text.h"
#include "troupe/dist/dispatcher.h"
#include "troupe/nn/context.h"
#include "troupe/nn/routers/router.h"
#include "troupe/ops/capacity.h"

namespace troupe {

constexpr auto names_of(DropPolicy) {
  return std::array{Named{"probs", DropPolicy::kProbs}, Named{"position", DropPolicy::kPosition}};
}

struct CapacityConfig {
  double factor = 0;  // phi; 0: none
  int64_t min = 1;    // C_min
  DropPolicy policy = DropPolicy::kProbs;
  bool pad = false;
  bool renormalise = false;
  bool in_evaluation = false;

  static void visit(auto& c, auto&& f) {
    f("factor", c.factor);
    f("min", c.min);
    f("policy", c.policy);
    f("pad", c.pad);
    f("renormalise", c.renormalise);
    f("in_evaluation", c.in_evaluation);
  }
};
void validate(const CapacityConfig& config, const Router& router);

struct Kept {
  Routed routed;
  at::Tensor dropped = {};  // int64 scalar; undefined: nothing can drop
};

// What of the router's choices goes to the experts; `alignment` as Routed's.
Kept keep_within(const CapacityConfig& config, const RouterOutput& routed, const Tokens& tokens,
                 const Context& context, int64_t alignment);

}  // namespace troupe
