#include "troupe/dist/copies.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace troupe {
namespace {

// For each true element its place among them, -1 for the others; int32.
at::Tensor places(const at::Tensor& mask) {
  const at::Tensor place = mask.reshape({-1}).cumsum(0, at::kInt) - 1;
  return place.masked_fill(mask.reshape({-1}).logical_not(), -1).reshape(mask.sizes());
}

// Of what a plan holds, combine reads slot_row alone.
Plan summing(const at::Tensor& slot_row, int64_t rows) {
  const auto ints = slot_row.options();
  const at::Tensor none = at::empty({rows}, ints);
  return {.expert_offset = at::arange(2, ints) * rows,
          .row_src = none,
          .row_slot = none,
          .slot_row = slot_row.contiguous(),
          .counts = at::empty({1}, ints.dtype(at::kLong))};
}

}  // namespace

Copies::Copies(OwnerTable& table, const at::Tensor& ids_TK, int64_t slices)
    : sent_WTK_(table.sent_WTK(ids_TK)), any_WT_(sent_WTK_.any(2)), slices_(slices) {}

at::Tensor Copies::counts(int64_t capacity) const {
  const at::Tensor copies = any_WT_.sum(1, false, at::kInt);
  const at::Tensor rows = sent_WTK_.sum({1, 2}, false, at::kInt);
  return at::stack({copies, rows, at::full_like(copies, capacity)}, 1);
}

void Copies::list(int64_t copies) {
  copy_C_ = at::nonzero_static(any_WT_.reshape({-1}), copies).squeeze(1);
  token_C_ = copy_C_.remainder(std::max<int64_t>(1, any_WT_.size(1)));
}

at::Tensor Copies::routing(OwnerTable& table, const at::Tensor& ids_TK,
                           const at::Tensor& scores_TK) const {
  const int64_t T = std::max<int64_t>(1, ids_TK.size(0)), K = ids_TK.size(1);
  const at::Tensor sent_CK = sent_WTK_.reshape({-1, K}).index_select(0, copy_C_);
  const at::Tensor rank_C = copy_C_.div(T, "floor");
  const at::Tensor ids = table.local_ids_CK(ids_TK.index_select(0, token_C_), rank_C);
  const at::Tensor scores = scores_TK.detach().index_select(0, token_C_);
  return at::cat({ids.masked_fill(sent_CK.logical_not(), -1), scores.view(at::kInt)}, 1);
}

Plan Copies::sum_of_copies(int64_t copies) const {
  return summing(places(any_WT_).t(), copies);
}

Plan Copies::sum_of_rows(int64_t rows) const {
  const at::Tensor place_WTK = places(sent_WTK_);
  if (slices_ == 1) return summing(place_WTK.amax(0), rows);
  return summing(place_WTK.permute({1, 2, 0}).flatten(1), rows);
}

Plan Copies::sum_of_slots(int64_t rows) const {
  const at::Tensor place_WTK = places(sent_WTK_);
  if (slices_ == 1) return summing(place_WTK.amax(0).reshape({-1, 1}), rows);
  return summing(place_WTK.permute({1, 2, 0}).flatten(0, 1), rows);
}

CopyRouting read_routing(const at::Tensor& routing, int64_t choices, at::ScalarType score_type) {
  // A clone: memory of its own, aligned for f64.
  const at::Tensor bits =
      routing.narrow(1, choices, routing.size(1) - choices).clone(at::MemoryFormat::Contiguous);
  return {routing.narrow(1, 0, choices).contiguous(), bits.view(score_type)};
}

}  // namespace troupe
