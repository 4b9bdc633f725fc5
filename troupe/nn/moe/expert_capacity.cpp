#include "troupe/nn/moe/expert_capacity.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "troupe/core/check.h"

namespace troupe {

void validate(const CapacityConfig& c, const Router& router) {
  constexpr const char* kPlace = "model.moe.capacity";
  if (c.factor < 0 || !std::isfinite(c.factor) || c.min < 1) {
    fail(Code::kBadValue, kPlace, "factor is", c.factor, "and min is", c.min,
         "; factor must be 0 (no capacity) or more, min 1 or more");
  }
  if (c.budget < 0 || !std::isfinite(c.budget)) {
    fail(Code::kBadValue, kPlace, "budget is", c.budget, "; it must be 0 (no bound) or more");
  }
  if (c.budget > 0 && !router.is_causal()) {
    fail(Code::kBadValue, kPlace, "expert choice gives every expert the same number of rows, so a",
         "budget has no use");
  }
  if (c.factor > 0 && !router.may_drop()) {
    fail(Code::kBadValue, kPlace, "this router balances by itself and excludes a capacity (C8)");
  }
}

Kept keep_within(const CapacityConfig& c, const RouterOutput& r, const Tokens& tokens,
                 const Context& context, int64_t alignment) {
  Kept out{.routed = {.ids_TK = r.ids_TK, .scores_TK = r.weights_TK, .alignment = alignment}};
  if (c.budget > 0 && context.training && context.budgeted) {
    const auto most = c.budget * static_cast<double>(r.ids_TK.numel());
    out.routed.budget = std::max<int64_t>(1, std::llround(std::ceil(most - 1e-6)));
  }
  if (c.factor == 0 || !(context.training || c.in_evaluation)) return out;
  const DropOptions options{.experts = r.counts_E.size(0),
                            .rule = {.factor = c.factor, .minimum = c.min},
                            .policy = c.policy,
                            .renormalize = c.renormalize};
  const GroupRows group(c.scope, context, tokens, r.ids_TK);
  const at::Tensor ids_GK = group.all(r.ids_TK);
  const KeptSlots kept =
      drop_over_capacity(ids_GK, group.all(r.weights_TK), group.valid(), options);
  out.routed.ids_TK = group.own(kept.ids_TK);
  out.routed.scores_TK = group.own(kept.weights_TK);
  out.dropped =
      group.shared() ? r.ids_TK.ge(0).sum() - out.routed.ids_TK.ge(0).sum() : kept.dropped;
  // Padding needs C on the host: that of all tokens, which is C or more where some are invalid.
  if (c.pad) {
    const int64_t T = r.ids_TK.size(0), K = r.ids_TK.size(1);
    out.routed.capacity = std::min(T, capacity(options.rule, ids_GK.size(0), K, options.experts));
  }
  return out;
}

}  // namespace troupe
