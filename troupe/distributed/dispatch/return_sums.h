// How the rows that come back to a token's owner are added: plans for ops/combine. Places are those
// in the returned buffer of `rows` rows, int32, -1 where nothing comes.
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

}  // namespace troupe
