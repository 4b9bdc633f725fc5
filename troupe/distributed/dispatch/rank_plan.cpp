#include "troupe/distributed/dispatch/rank_plan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {

at::Tensor within_budget(const at::Tensor& ids_SK, int64_t budget, at::Tensor& lost) {
  if (budget == 0) return ids_SK;
  const at::Tensor routed = ids_SK.reshape({-1}).ge(0);
  const at::Tensor over = routed.logical_and(routed.cumsum(0).gt(budget));
  lost = lost.defined() ? lost + over.sum() : over.sum();
  return ids_SK.masked_fill(over.reshape(ids_SK.sizes()), -1);
}

Plan plan_of_rank(const at::Tensor& ids_SK, const PlanOptions& options, int64_t routed) {
  if (options.experts > 0) {
    Plan plan = routing_plan(ids_SK, options);
    const int64_t bound = plan.row_src.size(0);
    if (routed < 0 || options.capacity > 0) return plan;
    // The rows in use are the first ones.
    const int64_t rows = std::min(bound, routed + options.experts * (options.alignment - 1));
    plan.row_src = plan.row_src.narrow(0, 0, rows);
    plan.row_slot = plan.row_slot.narrow(0, 0, rows);
    return plan;
  }
  const auto ints = ids_SK.options();
  const at::Tensor none = at::empty({0}, ints);
  return {.expert_offset = at::zeros({1}, ints),
          .row_src = none,
          .row_slot = none,
          .slot_row = ids_SK,  // all -1
          .counts = at::empty({0}, ints.dtype(at::kLong))};
}

void check_routed(const Routed& routed, const at::Tensor& x_TD) {
  TROUPE_CHECK(routed.ids_TK.dim() == 2 && routed.ids_TK.size(0) == x_TD.size(0) &&
                   routed.scores_TK.sizes() == routed.ids_TK.sizes(),
               "ids", routed.ids_TK.sizes(), "and scores", routed.scores_TK.sizes(), "for x",
               x_TD.sizes());
}

void check_placed_on(const ExpertPlacement& placement, const ProcessGroup& ranks) {
  TROUPE_CHECK(ranks.size() == placement.ranks(), "experts are placed on", placement.ranks(),
               "ranks, but the group has", ranks.size(), ":", ranks.description());
}

}  // namespace troupe
