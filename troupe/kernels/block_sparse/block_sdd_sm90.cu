// S = op(A) op(B): two stored blocks that are side by side are a tile.
#include "troupe/core/number/round.h"
#include "troupe/kernels/block_sparse/block_sparse_sm90.h"
#include "troupe/kernels/block_sparse/wgmma_tiles.cuh"

namespace troupe::sparse {
namespace {

// Stored blocks 2 i and 2 i + 1 are the tiles of item i: one tile where they are neighbors in a
// row of blocks, as nearly all are where experts' widths are even numbers of blocks; else two,
// whose right halves are thrown away.
template <Major kA, Major kB>
struct SddTiles {
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static constexpr bool kTransposed = false;
  const int32_t *row_offsets, *col_indices;
  int block_rows, k, columns;

  template <class Feed>
  __device__ void feed(Feed& feed) const {
    const int stored = __ldg(row_offsets + block_rows);
    for (int p = 2 * static_cast<int>(blockIdx.x); p < stored;
         p += 2 * static_cast<int>(gridDim.x)) {
      const int row = block_row(p), column = __ldg(col_indices + p);
      const bool second = p + 1 < stored;
      const bool joined = second && p + 1 < __ldg(row_offsets + row + 1) &&
                          __ldg(col_indices + p + 1) == column + 1;
      tile(feed, p, row, column, joined ? 2 : 1);
      if (second && !joined) tile(feed, p + 1, block_row(p + 1), __ldg(col_indices + p + 1), 1);
    }
  }

 private:
  template <class Feed>
  __device__ void tile(Feed& feed, int block, int row, int column, int parts) const {
    const Word word{(k + kDepth - 1) / kDepth, 0, block * 128, parts};
    for (int step = 0; step < word.steps; ++step) {
      feed.step(step == 0 ? &word : nullptr,
                {row * 128, step * kDepth, column * 128, step * kDepth});
    }
  }
  __device__ int block_row(int block) const { return line_of(row_offsets, block_rows, block); }
};

}  // namespace

void block_sdd_sm90(const BlockSdd& x, cudaStream_t stream) {
  const BlockTopology& t = x.topology;
  const Major a = x.a.transpose ? Major::kMN : Major::kK,
              b = x.b.transpose ? Major::kK : Major::kMN;
  dispatch_operands(a, b, x.c.dtype, [&]<Major kA, Major kB, Half16 kType>() {
    const int64_t k = x.a.transpose ? x.a.matrix.rows : x.a.matrix.cols;
    const SddTiles<kA, kB> work{t.row_offsets, t.col_indices, static_cast<int>(t.rows / 128),
                                static_cast<int>(k), static_cast<int>(t.cols)};
    launch_tiles<SddTiles<kA, kB>, kType>(
        work, ceil_div(t.blocks, 2),
        {operand_map(x.a.matrix, kA, x.c), operand_map(x.b.matrix, kB, x.c), result_map(x.c)},
        stream);
  });
}

}  // namespace troupe::sparse
