// Products with a block-sparse matrix, kernels/block_sparse (MegaBlocks, STK): of its square blocks
// only some are stored. A matrix is a structure and values [blocks, B, B] of the stored blocks.
//
//   sdd   values = a b where the structure stores a block        a [rows, K], b [K, cols]
//   dsd   S b                                                    b [cols, N]
//   dds   a S                                                    a [M, rows]
//
// A dense operand may be a transposed view (x.t()): it is read in place. structure.t() stands for S
// transposed, over the same values. Gradients for all dense operands and values. CUDA: B = 128, and
// rows of dense operands at multiples of 16 bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/ops/topology.h"

namespace troupe {

struct BlockStructure {
  c10::SymInt rows, cols;  // sizes of S as stored, in elements
  int64_t block;
  at::Tensor row_offsets;  // int32 [rows / B + 1]  blocks of a row are numbered in one go
  at::Tensor col_indices;  // int32 [blocks]        entries past row_offsets' last mean nothing
  at::Tensor col_offsets;  // int32 [cols / B + 1]  the same blocks by columns:
  at::Tensor row_indices;  // int32 [blocks]        the row of an entry
  at::Tensor block_order;  // int32 [blocks]        and the number of its block
  bool transposed = false;

  BlockStructure t() const;
};

struct BlockSize {
  int64_t rows, cols, block;
};

// Completes a structure from its rows; columns rise within a row. Waits for no device.
BlockStructure block_structure(const at::Tensor& row_offsets, const at::Tensor& col_indices,
                               const BlockSize& size);

// The block diagonal of an MoE layer: rows of expert e times the columns of expert e. padded_bins
// int32 [E]: inclusive sums of the experts' rows in whole blocks; rows past the last have no block.
BlockStructure block_diagonal(const at::Tensor& padded_bins, const BlockGrid& grid);

at::Tensor sdd(const at::Tensor& a, const at::Tensor& b, const BlockStructure& structure);
at::Tensor dsd(const at::Tensor& values, const BlockStructure& structure, const at::Tensor& b);
at::Tensor dds(const at::Tensor& a, const at::Tensor& values, const BlockStructure& structure);

}  // namespace troupe
