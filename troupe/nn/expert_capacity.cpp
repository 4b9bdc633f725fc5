#include "troupe/nn/expert_capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Each slot's place among its expert's, best first: by weight, or by slot alone.
at::Tensor places(const at::Tensor& ids_s, const at::Tensor& weights_s, int64_t experts,
                  CapacityPolicy policy) {
  const at::Tensor expert_s = ids_s.masked_fill(ids_s.lt(0), experts);
  at::Tensor order = at::arange(ids_s.size(0), ids_s.options());
  if (policy == CapacityPolicy::kProbs) {
    const at::Tensor ranked =
        weights_s.masked_fill(weights_s.isnan(), -std::numeric_limits<double>::infinity());
    order = std::get<1>(ranked.sort(/*stable=*/true, 0, /*descending=*/true));
  }
  order = order.index_select(0, std::get<1>(expert_s.index_select(0, order).sort(true, 0, false)));
  const at::Tensor counts = at::zeros({experts + 1}, ids_s.options())
                                .scatter_add_(0, expert_s, ids_s.new_ones(ids_s.sizes()));
  const at::Tensor first = counts.cumsum(0) - counts;
  const at::Tensor place = at::arange(ids_s.size(0), ids_s.options()) -
                           first.index_select(0, expert_s.index_select(0, order));
  return at::zeros(ids_s.sizes(), ids_s.options()).scatter_(0, order, place);
}

double limit(double factor, int64_t choices, int64_t experts) {
  return factor * static_cast<double>(choices) / static_cast<double>(experts);
}

}  // namespace

int64_t capacity_of(const CapacityConfig& c, int64_t tokens, int64_t choices, int64_t experts) {
  if (c.factor == 0) return tokens;
  const double wanted =
      std::ceil(limit(c.factor, choices, experts) * static_cast<double>(tokens) - 1e-6);
  const auto most = static_cast<double>(std::max<int64_t>(tokens, 0));
  return static_cast<int64_t>(std::min(most, std::max(static_cast<double>(c.min), wanted)));
}

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
  const int64_t T = r.ids_TK.size(0), K = r.ids_TK.size(1), E = r.counts_E.size(0);
  at::Tensor kept_TK;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor ids = r.ids_TK.reshape({-1}).to(at::kLong);
    const at::Tensor place = places(ids, r.weights_TK.detach().reshape({-1}), E, c.policy);
    const at::Tensor n =
        tokens.valid_T.defined() ? tokens.valid_T.sum() : at::full({}, T, ids.options());
    const at::Tensor wanted = (n.to(at::kDouble) * limit(c.factor, K, E) - 1e-6).ceil();
    const at::Tensor most = wanted.clamp_min(static_cast<double>(c.min)).minimum(n);
    kept_TK = ids.ge(0).logical_and(place.lt(most)).reshape({T, K});
    out.dropped = ids.ge(0).sum() - kept_TK.sum();
  }
  const at::Tensor drop_TK = kept_TK.logical_not();
  out.routed.ids_TK = r.ids_TK.masked_fill(drop_TK, -1);
  out.routed.scores_TK = r.weights_TK.masked_fill(drop_TK, 0);
  if (c.renormalise) {
    const at::Tensor left = out.routed.scores_TK.sum(1, true);
    const at::Tensor none = left.eq(0);
    out.routed.scores_TK =
        (out.routed.scores_TK * (r.weights_TK.sum(1, true) / left.masked_fill(none, 1)));
  }
  if (c.pad) out.routed.capacity = capacity_of(c, T, K, E);
  return out;
}

}  // namespace troupe
