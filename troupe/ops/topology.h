// The columns of the nonzero blocks of an experts' block-diagonal matrix: kernels/topology.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

struct BlockGrid {
  int64_t block;    // rows and columns of a block: 128
  int64_t rows;     // block rows
  int64_t columns;  // block columns of one expert
};

// padded_bins int32 [E], inclusive sums of whole blocks; returns int32 [rows * columns].
at::Tensor topology(const at::Tensor& padded_bins, const BlockGrid& grid);

}  // namespace troupe
