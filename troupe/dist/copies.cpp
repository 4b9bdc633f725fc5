#include "troupe/dist/copies.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "troupe/dist/return_sums.h"

namespace troupe {

Copies::Copies(const at::Tensor& sent_WTK, int64_t slices)
    : sent_WTK_(sent_WTK), any_WT_(sent_WTK_.any(2)), slices_(slices) {}

at::Tensor Copies::counts(int64_t capacity) const {
  const at::Tensor copies = any_WT_.sum(1, false, at::kInt);
  const at::Tensor rows = sent_WTK_.sum({1, 2}, false, at::kInt);
  return at::stack({copies, rows, at::full_like(copies, capacity)}, 1);
}

void Copies::list(int64_t copies) {
  const int64_t W = any_WT_.size(0), T = any_WT_.size(1), K = sent_WTK_.size(2);
  const int64_t size = copies < 0 ? T * std::min(W, K * slices_) : copies;
  copy_C_ = at::nonzero_static(any_WT_.reshape({-1}), size, /*fill_value=*/0).squeeze(1);
  token_C_ = copy_C_.remainder(std::max<int64_t>(1, T));
}

void Copies::trim(int64_t copies) {
  copy_C_ = copy_C_.narrow(0, 0, copies);
  token_C_ = token_C_.narrow(0, 0, copies);
}

at::Tensor Copies::routing(OwnerTable& table, const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                           int64_t first_rank) const {
  const at::Tensor rank_C = copy_C_.div(std::max<int64_t>(1, ids_TK.size(0)), "floor");
  return told(table.local_ids(ids_TK.index_select(0, token_C_), rank_C + first_rank), scores_TK);
}

at::Tensor Copies::routing(const at::Tensor& ids_TK, const at::Tensor& scores_TK) const {
  return told(ids_TK.index_select(0, token_C_), scores_TK);
}

at::Tensor Copies::told(const at::Tensor& ids_CK, const at::Tensor& scores_TK) const {
  const at::Tensor sent_CK = sent_WTK_.reshape({-1, ids_CK.size(1)}).index_select(0, copy_C_);
  const at::Tensor scores = scores_TK.detach().index_select(0, token_C_);
  return at::cat({ids_CK.masked_fill(sent_CK.logical_not(), -1), scores.view(at::kInt)}, 1);
}

Plan Copies::sum_of_copies(int64_t copies) const {
  return sum_over_ranks(places(any_WT_), copies);
}

Plan Copies::sum_of_rows(int64_t rows) const {
  return sum_over_slots(places(sent_WTK_), slices_, rows);
}

Plan Copies::sum_of_slots(int64_t rows) const {
  return sum_over_slices(places(sent_WTK_), slices_, rows);
}

CopyRouting read_routing(const at::Tensor& routing, int64_t choices, at::ScalarType score_type) {
  // A clone: memory of its own, aligned for f64.
  const at::Tensor bits =
      routing.narrow(1, choices, routing.size(1) - choices).clone(at::MemoryFormat::Contiguous);
  return {routing.narrow(1, 0, choices).contiguous(), bits.view(score_type)};
}

CopyRouting one_row_each(const CopyRouting& copies, int64_t rows, at::Tensor& copy_R) {
  const at::Tensor ids = copies.ids_CK.reshape({-1});
  const at::Tensor slot_R = at::nonzero_static(ids.ge(0), rows).squeeze(1);
  copy_R = slot_R.div(copies.ids_CK.size(1), "floor");
  return {ids.index_select(0, slot_R).unsqueeze(1),
          copies.scores_CK.reshape({-1}).index_select(0, slot_R).unsqueeze(1)};
}

}  // namespace troupe
