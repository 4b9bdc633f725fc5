// C7: the rows that a rank has room for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

// ids [S, K] of a rank's source rows: the first `budget` slots that have an expert, by (source row,
// slot), keep it; the others become -1 and are added to `lost`, an int64 scalar. Budget 0: room for
// all, and `lost` stays as it is.
at::Tensor within_budget(const at::Tensor& ids_SK, int64_t budget, at::Tensor& lost);

}  // namespace troupe
