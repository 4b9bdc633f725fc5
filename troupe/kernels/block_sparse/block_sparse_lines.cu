// C = op(S) op(B) and C = op(A) op(S): a tile of C sums over the stored blocks of a line of op(S).
// See tile_product.cuh for how a tile is computed.
#include "troupe/core/number/round.h"
#include "troupe/kernels/block_sparse/block_sparse.h"
#include "troupe/kernels/block_sparse/sources.cuh"

namespace troupe {
namespace {

using sparse::kBlock;
using tile::Major;

template <class T>
struct Problem {
  const T* values;
  Mat<const T> dense;
  Mat<T> c;
  sparse::Lines lines;
  bool vector;
};

// Tile (m, n) of C; its line is m where S is on the left, n where it is on the right.
struct LineTile {
  int m, n;
};

template <class T>
__device__ bool find_tile(const Problem<T>& p, int index, LineTile& t) {
  const int down = tile::tiles(static_cast<int>(p.c.rows), kBlock);
  const int across = tile::tiles(static_cast<int>(p.c.cols), kBlock);
  const auto [m, n] = tile::place(index, down, across);
  t = {m, n};
  return index < down * across;
}

template <class T, class Product>
__device__ __forceinline__ void store_tile(const Problem<T>& p, const LineTile& t,
                                           const Product& product) {
  const int row = t.m * kBlock, col = t.n * kBlock;
  const int rows = min(kBlock, static_cast<int>(p.c.rows) - row);
  const int cols = min(kBlock, static_cast<int>(p.c.cols) - col);
  product.store(tile::Output<T>{p.c.row(row) + col, p.c.ld, rows, cols, p.vector, false},
                tile::Plain{});
}

template <class T, Major kA, Major kB>
struct DsdWork {
  using Product = sparse::BlockProduct<T, kA, kB>;
  using SourceA = sparse::StoredBlocks<T, kA, Product::kThreads>;
  using SourceB = sparse::MetByBlocks<T, kB, Product::kThreads>;
  using Tile = LineTile;

  const Problem<T>& p;

  __device__ bool find(int index, Tile& t) const { return find_tile(p, index, t); }
  __device__ int open(const Tile& t, SourceA& a, SourceB& b) const {
    const int begin = p.lines.offsets[t.m], end = p.lines.offsets[t.m + 1], col = t.n * kBlock;
    a.open(p.values, p.lines, begin, end);
    b.open(p.dense, col, static_cast<int>(p.c.cols) - col, p.lines.across, begin, end);
    return (end - begin) * (kBlock / tile::kDepth<T>);
  }
  __device__ void store(const Tile& t, const Product& product) const { store_tile(p, t, product); }
};

template <class T, Major kA, Major kB>
struct DdsWork {
  using Product = sparse::BlockProduct<T, kA, kB>;
  using SourceA = sparse::MetByBlocks<T, kA, Product::kThreads>;
  using SourceB = sparse::StoredBlocks<T, kB, Product::kThreads>;
  using Tile = LineTile;

  const Problem<T>& p;

  __device__ bool find(int index, Tile& t) const { return find_tile(p, index, t); }
  __device__ int open(const Tile& t, SourceA& a, SourceB& b) const {
    const int begin = p.lines.offsets[t.n], end = p.lines.offsets[t.n + 1], row = t.m * kBlock;
    a.open(p.dense, row, static_cast<int>(p.c.rows) - row, p.lines.across, begin, end);
    b.open(p.values, p.lines, begin, end);
    return (end - begin) * (kBlock / tile::kDepth<T>);
  }
  __device__ void store(const Tile& t, const Product& product) const { store_tile(p, t, product); }
};

// A block of threads takes tiles blockIdx.x, + gridDim.x, ... of C.
template <class T, Major kA, Major kB>
__global__ void __launch_bounds__((sparse::kThreads<T, kA, kB>))
    block_dsd_kernel(const __grid_constant__ Problem<T> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DsdWork<T, kA, kB> work{p};
  tile::multiply_tiles(work, shared);
}

template <class T, Major kA, Major kB>
__global__ void __launch_bounds__((sparse::kThreads<T, kA, kB>))
    block_dds_kernel(const __grid_constant__ Problem<T> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DdsWork<T, kA, kB> work{p};
  tile::multiply_tiles(work, shared);
}

template <class T, class Args>
Problem<T> problem(const Args& x, const MatRef& values, const DenseOperand& dense) {
  return {.values = static_cast<const T*>(values.data),
          .dense = dense.matrix.as<T>(),
          .c = x.c.template as<T>(),
          .lines = sparse::summed_lines(x),
          .vector = tile::rows_aligned(x.c.data, x.c.ld, sizeof(T)) &&
                    x.c.cols * static_cast<int64_t>(sizeof(T)) % 16 == 0};
}

// False where there is nothing to do.
template <class Args>
bool check_for_cuda(const Args& x, const MatRef& values, const DenseOperand& dense) {
  validate(x);
  sparse::check_cuda_block(x.topology);
  if (x.c.rows == 0 || x.c.cols == 0) return false;
  sparse::check_cuda_operand("the sparse operand", values);
  sparse::check_cuda_operand("the dense operand", dense.matrix);
  return true;
}

int64_t tiles_of(const MutRef& c) {
  return ceil_div(c.rows, kBlock) * ceil_div(c.cols, kBlock);
}

}  // namespace

void block_dsd_cuda(const BlockDsd& x, cudaStream_t stream) {
  if (!check_for_cuda(x, x.a, x.b)) return;
  if (sparse::takes_wgmma(x.generic, x.c)) return sparse::block_dsd_sm90(x, stream);
  dispatch_float(x.c.dtype, [&]<class T>() {
    sparse::dispatch_majors(!x.transpose_a, x.b.transpose, [&]<Major kA, Major kB>() {
      const auto shape = sparse::shape(tiles_of(x.c), sparse::kThreads<T, kA, kB>);
      tile::launch(block_dsd_kernel<T, kA, kB>, shape, stream, problem<T>(x, x.a, x.b));
    });
  });
}

void block_dds_cuda(const BlockDds& x, cudaStream_t stream) {
  if (!check_for_cuda(x, x.b, x.a)) return;
  if (sparse::takes_wgmma(x.generic, x.c)) return sparse::block_dds_sm90(x, stream);
  dispatch_float(x.c.dtype, [&]<class T>() {
    sparse::dispatch_majors(!x.a.transpose, x.transpose_b, [&]<Major kA, Major kB>() {
      const auto shape = sparse::shape(tiles_of(x.c), sparse::kThreads<T, kA, kB>);
      tile::launch(block_dds_kernel<T, kA, kB>, shape, stream, problem<T>(x, x.b, x.a));
    });
  });
}

}  // namespace troupe
