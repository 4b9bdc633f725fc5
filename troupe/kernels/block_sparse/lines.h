// A line of op(S): the stored blocks of one of its block rows (or columns), in the order in which
// they are summed. Rows of S are found by the first half of the topology, columns by the second.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/kernels/block_sparse/block_sparse.h"

namespace troupe::sparse {

struct Lines {
  const int32_t* offsets;
  const int32_t* across;  // the block's place along the line
  const int32_t* blocks;  // nullptr: entry q is block q

  TROUPE_HOST_DEVICE int32_t block(int32_t q) const { return blocks != nullptr ? blocks[q] : q; }
};

// The last of `count` lines that begins at or before a stored block.
TROUPE_HOST_DEVICE inline int line_of(const int32_t* offsets, int count, int block) {
  int low = 0, high = count;  // offsets[low] <= block < offsets[high]
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (offsets[middle] <= block ? low : high) = middle;
  }
  return low;
}

inline Lines rows_of(const BlockTopology& t) {
  return {t.row_offsets, t.col_indices, nullptr};
}
inline Lines columns_of(const BlockTopology& t) {
  return {t.col_offsets, t.row_indices, t.block_order};
}
// The lines that a product sums along: rows of op(S) in S B, columns of op(S) in A S.
inline Lines summed_lines(const BlockDsd& x) {
  return x.transpose_a ? columns_of(x.topology) : rows_of(x.topology);
}
inline Lines summed_lines(const BlockDds& x) {
  return x.transpose_b ? rows_of(x.topology) : columns_of(x.topology);
}

}  // namespace troupe::sparse
