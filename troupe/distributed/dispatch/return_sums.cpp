#include "troupe/distributed/dispatch/return_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

namespace troupe {
namespace {

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

// [T, K, n]: without slices at most one rank has a slot's row.
at::Tensor places_of_slots(const at::Tensor& place_WTK, int64_t slices) {
  return slices == 1 ? place_WTK.amax(0).unsqueeze(2) : place_WTK.permute({1, 2, 0});
}

}  // namespace

at::Tensor places(const at::Tensor& mask) {
  const at::Tensor place = mask.reshape({-1}).cumsum(0, at::kInt) - 1;
  return place.masked_fill(mask.reshape({-1}).logical_not(), -1).reshape(mask.sizes());
}

Plan sum_over_ranks(const at::Tensor& place_WT, int64_t rows) {
  return summing(place_WT.t(), rows);
}

Plan sum_over_slots(const at::Tensor& place_WTK, int64_t slices, int64_t rows) {
  return summing(places_of_slots(place_WTK, slices).flatten(1), rows);
}

Plan sum_over_slices(const at::Tensor& place_WTK, int64_t slices, int64_t rows) {
  return summing(places_of_slots(place_WTK, slices).flatten(0, 1), rows);
}

GatheredSums sums_of_gathered(const at::Tensor& sent_WTK, int64_t slices, int64_t most,
                              bool by_slot) {
  const int64_t W = sent_WTK.size(0), T = sent_WTK.size(1), K = by_slot ? sent_WTK.size(2) : 1;
  const int64_t rows = W * most * K;
  const at::Tensor place =
      at::arange(rows, sent_WTK.options().dtype(at::kInt)).reshape({W, most, K}).narrow(1, 0, T);
  if (by_slot) {
    const at::Tensor place_WTK = place.masked_fill(sent_WTK.logical_not(), -1);
    return {sum_over_slots(place_WTK, slices, rows), sum_over_slices(place_WTK, slices, rows)};
  }
  const at::Tensor none_WT = sent_WTK.any(2).logical_not();
  return {sum_over_ranks(place.squeeze(2).masked_fill(none_WT, -1), rows), {}};
}

}  // namespace troupe
