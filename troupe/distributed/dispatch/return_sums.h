// Plans for ops/combine that sum the rows returned to a token's owner. A place is a row of the
// returned buffer of `rows` rows, int32; -1: nothing is returned.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/ops/support/plan.h"

namespace troupe {

// For each true element of a mask its place among them in row-major order, -1 for the others.
at::Tensor places(const at::Tensor& mask);

// place [W, T] of each rank's part of a token: a token's parts in rank order.
Plan sum_over_ranks(const at::Tensor& place_WT, int64_t rows);
// place [W, T, K] of each slot's row: a token's rows in slot order; slices of one in rank order.
Plan sum_over_slots(const at::Tensor& place_WTK, int64_t slices, int64_t rows);
// The same places, one sum for each slot, [T K]: of its one row, or of its slices.
Plan sum_over_slices(const at::Tensor& place_WTK, int64_t slices, int64_t rows);

// The sums of a token's rows where every rank has room for `most` tokens of each other one, or for
// each of their K slots (`by_slot`): rank w's row of token t is w most + t, or (w most + t) K + k.
// sent [W, T, K]: the row goes to rank w. `slot_sums` only `by_slot`.
struct GatheredSums {
  Plan sums, slot_sums;
};
GatheredSums sums_of_gathered(const at::Tensor& sent_WTK, int64_t slices, int64_t most,
                              bool by_slot);

}  // namespace troupe
