#include "troupe/nn/expert_capacity.h"

#include <cmath>

#include "troupe/core/check.h"

namespace troupe {

void validate(const CapacityConfig& c, const Router& router) {
  constexpr const char* kPlace = "model.moe.capacity";
  if (c.factor < 0 || !std::isfinite(c.factor) || c.min < 1) {
    fail(Code::kBadValue, kPlace, "factor is", c.factor, "and min is", c.min,
         "; factor must be 0 (no capacity) or more, min 1 or more");
  }
  if (c.factor > 0 && !router.may_drop()) {
    fail(Code::kBadValue, kPlace, "this router balances by itself and excludes a capacity (C8)");
  }
}

Kept keep_within(const CapacityConfig& c, const RouterOutput& r, const Tokens& tokens,
                 const Context& context, int64_t alignment) {
  Kept out{.routed = {.ids_TK = r.ids_TK, .scores_TK = r.weights_TK, .alignment = alignment}};
  if (c.factor == 0 || !(context.training || c.in_evaluation)) return out;
  const DropOptions options{.experts = r.counts_E.size(0),
                            .rule = {.factor = c.factor, .minimum = c.min},
                            .policy = c.policy,
                            .renormalise = c.renormalise};
  const auto valid = tokens.valid_T.defined() ? std::optional(tokens.valid_T) : std::nullopt;
  const KeptSlots kept = drop_over_capacity(r.ids_TK, r.weights_TK, valid, options);
  out.routed.ids_TK = kept.ids_TK;
  out.routed.scores_TK = kept.weights_TK;
  out.dropped = kept.dropped;
  // Padding needs C on the host: all tokens, which is C or more where some are invalid.
  if (c.pad) {
    const int64_t T = r.ids_TK.size(0), K = r.ids_TK.size(1);
    out.routed.capacity = capacity(options.rule, T, K, options.experts);
  }
  return out;
}

}  // namespace troupe
