// Products with a block-sparse matrix S (MegaBlocks, STK): a matrix of square blocks of which only
// some are stored, the others being zero.
//
//   BlockSdd   S = op(A) op(B)   where S is stored, and nowhere else
//   BlockDsd   C = op(S) op(B)   dense = sparse x dense
//   BlockDds   C = op(A) op(S)   dense = dense x sparse
//
// op(X) is X, or its transpose where the operand's `transpose` is set. Block p of S (p below
// row_offsets[rows / B], which on CUDA only the device knows) is at values[p B ... p B + B, 0 ...
// B), row-major; blocks are ordered by row, then by column. Blocks past the last are neither read
// nor written. S transposed is read through the second half of the topology, and moved nowhere.
//
// Dense results are overwritten whole: a row of blocks without any gives zeros. Sums are fp32
// (double for f64) over the blocks in rising order, rounded once; the same bits in every run and
// for any number of threads. Sizes of S are multiples of B; the third size is any from 1 on. CUDA:
// B = 128, f32, bf16, f16, and rows of dense operands begin at multiples of 16 bytes. Offsets of
// elements are 64-bit, indices of blocks int32 and below 2^31: 32,767 blocks are no bound. bf16 and
// f16 are multiplied on a Hopper GPU by its own tensor cores' instructions where rows of the result
// end at multiples of 16 bytes, elsewhere and where `generic` asks for it by those of any GPU.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

// Where the stored blocks are: by rows, and the same blocks by columns. On CUDA all pointers are
// device pointers.
struct BlockTopology {
  int64_t rows;  // of the matrix, in elements
  int64_t cols;
  int64_t blocks;                        // the host's bound on stored blocks
  int64_t block = 128;                   // B
  const int32_t* row_offsets = nullptr;  // [rows / B + 1]  row i: blocks [row_offsets[i], [i + 1])
  const int32_t* col_indices = nullptr;  // [blocks]        block column of block p
  const int32_t* col_offsets =
      nullptr;  // [cols / B + 1]  column j: entries [col_offsets[j], [j + 1])
  const int32_t* row_indices =
      nullptr;  // [blocks]        block row of an entry, rising in a column
  const int32_t* block_order = nullptr;  // [blocks]        its block p
};

struct DenseOperand {
  MatRef matrix;
  bool transpose = false;
};

struct BlockSdd {
  DenseOperand a;  // op: [rows, K]
  DenseOperand b;  // op: [K, cols]
  BlockTopology topology;
  MutRef c;  // [blocks B, B]  out: values
  bool generic = false;
};

struct BlockDsd {
  MatRef a;  // [blocks B, B]  values
  BlockTopology topology;
  bool transpose_a = false;
  DenseOperand b;  // op: [K, N], K = columns of op(S)
  MutRef c;        // [rows of op(S), N]  out
  bool generic = false;
};

struct BlockDds {
  DenseOperand a;  // op: [M, K], K = rows of op(S)
  MatRef b;        // [blocks B, B]  values
  BlockTopology topology;
  bool transpose_b = false;
  MutRef c;  // [M, columns of op(S)]  out
  bool generic = false;
};

void validate(const BlockSdd& args);
void validate(const BlockDsd& args);
void validate(const BlockDds& args);

// 2 B^2 for each stored block and each element of the third size.
int64_t flops(const BlockSdd& args, int64_t true_blocks);
int64_t flops(const BlockDsd& args, int64_t true_blocks);
int64_t flops(const BlockDds& args, int64_t true_blocks);

void block_sdd_ref(const BlockSdd& args);
void block_sdd_cpu(const BlockSdd& args, const Pool& pool);
void block_sdd_cuda(const BlockSdd& args, cudaStream_t stream);

void block_dsd_ref(const BlockDsd& args);
void block_dsd_cpu(const BlockDsd& args, const Pool& pool);
void block_dsd_cuda(const BlockDsd& args, cudaStream_t stream);

void block_dds_ref(const BlockDds& args);
void block_dds_cpu(const BlockDds& args, const Pool& pool);
void block_dds_cuda(const BlockDds& args, cudaStream_t stream);

}  // namespace troupe
