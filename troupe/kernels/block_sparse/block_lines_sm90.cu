// C = op(S) op(B), and C^T = op(S)^T op(A)^T for C = op(A) op(S): a tile is 128 lines of
// the sparse operand and 256 of the dense one; k runs over the line's stored blocks.
#include "troupe/core/number/round.h"
#include "troupe/kernels/block_sparse/block_sparse_sm90.h"
#include "troupe/kernels/block_sparse/wgmma_tiles.cuh"

namespace troupe::sparse {
namespace {

// Blocks hold k along their rows (kA is kK) or down their columns. kTurned: C is stored transposed.
template <Major kA, Major kB, bool kTurned>
struct LineTiles {
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static constexpr bool kTransposed = kTurned;
  Lines lines;
  int count, columns;  // of lines of blocks; of the dense operand

  template <class Feed>
  __device__ void feed(Feed& feed) const {
    const int across = (columns + kColumns - 1) / kColumns;
    for (int t = static_cast<int>(blockIdx.x); t < count * across;
         t += static_cast<int>(gridDim.x)) {
      const int line = t / across, n = (t - line * across) * kColumns;
      const int begin = __ldg(lines.offsets + line), end = __ldg(lines.offsets + line + 1);
      const Word word{(end - begin) * (128 / kDepth), kTurned ? line * 128 : n,
                      kTurned ? n : line * 128, 0};
      if (begin == end) feed.tell(word);
      // A block early: copies must not wait for indices.
      int block = begin < end ? lines.block(begin) : 0;
      int place = begin < end ? __ldg(lines.across + begin) : 0;
      for (int q = begin; q < end; ++q) {
        const int next_block = q + 1 < end ? lines.block(q + 1) : 0;
        const int next_place = q + 1 < end ? __ldg(lines.across + q + 1) : 0;
#pragma unroll
        for (int half = 0; half < 128 / kDepth; ++half) {
          const int k = half * kDepth;
          feed.step(q == begin && half == 0 ? &word : nullptr,
                    {kA == Major::kK ? block * 128 : 0, kA == Major::kK ? k : block * 128 + k, n,
                     place * 128 + k});
        }
        block = next_block, place = next_place;
      }
    }
  }
};

struct LineProduct {
  Lines lines;
  int64_t count, columns;
  MatRef values;
  bool k_along_rows;  // of the stored blocks
  DenseOperand dense;
  bool dense_k_along_rows;
  MutRef c;
};

template <bool kTurned>
void launch_lines(const LineProduct& x, cudaStream_t stream) {
  const Major a = x.k_along_rows ? Major::kK : Major::kMN;
  const Major b = x.dense_k_along_rows ? Major::kK : Major::kMN;
  dispatch_operands(a, b, x.c.dtype, [&]<Major kA, Major kB, Half16 kType>() {
    using Work = LineTiles<kA, kB, kTurned>;
    const Work work{x.lines, static_cast<int>(x.count), static_cast<int>(x.columns)};
    launch_tiles<Work, kType>(
        work, x.count * ceil_div(x.columns, kColumns),
        {operand_map(x.values, kA, x.c), operand_map(x.dense.matrix, kB, x.c), result_map(x.c)},
        stream);
  });
}

}  // namespace

void block_dsd_sm90(const BlockDsd& x, cudaStream_t stream) {
  launch_lines<false>(
      {summed_lines(x), x.c.rows / 128, x.c.cols, x.a, !x.transpose_a, x.b, x.b.transpose, x.c},
      stream);
}

void block_dds_sm90(const BlockDds& x, cudaStream_t stream) {
  launch_lines<true>(
      {summed_lines(x), x.c.cols / 128, x.c.rows, x.b, x.transpose_b, x.a, !x.a.transpose, x.c},
      stream);
}

}  // namespace troupe::sparse
