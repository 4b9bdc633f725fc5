#include "troupe/distributed/dispatch/copies.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/nonzero_static.h>

#include "troupe/ops/routing_plan.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {
namespace {

// The first `rows` of a plan are all that it has.
Plan of_rows(Plan plan, int64_t rows) {
  plan.row_src = plan.row_src.narrow(0, 0, rows);
  plan.row_slot = plan.row_slot.narrow(0, 0, rows);
  return plan;
}

}  // namespace

Copies::Copies(OwnerTable& table, const at::Tensor& ids_TK, const Targets& to, int64_t capacity,
               const at::Tensor& index_T)
    : to_(to), ids_TK_(ids_TK) {
  const OwnerTable::Tensors& owners = table.on(ids_TK.device());
  local_WE_ = owners.local_WE;
  lists_ = list_copies(ids_TK, given(index_T),
                       {.owners_EM = owners.owners_EM,
                        .replicas_E = owners.replicas_E,
                        .slices = table.slices() > 1,
                        .first = to.first,
                        .per = to.per,
                        .count = to.count},
                       capacity);
}

at::Tensor Copies::pack_routing(const at::Tensor& scores_TK, RoutingFormat as) {
  plan_ = routing_plan(lists_.copy_target_TL, {.experts = to_.count});
  const bool local = as == RoutingFormat::kLocalIds;
  const auto names = local ? std::optional(local_WE_.narrow(0, to_.first, to_.count))
                           : std::optional<at::Tensor>();
  ToldCopies out = tell_copies(ids_TK_, scores_TK.detach(), lists_, plan_.row_slot, names, !local);
  token_C_ = out.token_C;
  return out.told_CX;
}

void Copies::trim(int64_t copies) {
  plan_ = of_rows(plan_, copies);
  token_C_ = token_C_.narrow(0, 0, copies);
}

Plan Copies::sum_of_rows(int64_t rows) const {
  return of_rows(routing_plan(lists_.row_target_TKS.flatten(1), {.experts = to_.count}), rows);
}

Plan Copies::sum_of_slots(int64_t rows) const {
  return of_rows(routing_plan(lists_.row_target_TKS.flatten(0, 1), {.experts = to_.count}), rows);
}

CopyRouting read_routing(const at::Tensor& received, int64_t choices, at::ScalarType score_type) {
  // A clone: memory of its own, aligned for f64.
  const at::Tensor bits =
      received.narrow(1, choices, received.size(1) - choices).clone(at::MemoryFormat::Contiguous);
  return {received.narrow(1, 0, choices).contiguous(), bits.view(score_type)};
}

CopyRouting one_row_each(const CopyRouting& copies, int64_t rows, at::Tensor& copy_R) {
  const at::Tensor ids = copies.ids_CK.reshape({-1});
  const at::Tensor slot_R = at::nonzero_static(ids.ge(0), rows).squeeze(1);
  copy_R = slot_R.div(copies.ids_CK.size(1), "floor");
  return {ids.index_select(0, slot_R).unsqueeze(1),
          copies.scores_CK.reshape({-1}).index_select(0, slot_R).unsqueeze(1)};
}

}  // namespace troupe
