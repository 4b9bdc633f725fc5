// S = op(A) op(B), the stored blocks alone. See tile_product.cuh for how a tile is computed.
#include "troupe/kernels/block_sparse/block_sparse.h"
#include "troupe/kernels/block_sparse/sources.cuh"

namespace troupe {
namespace {

using sparse::kBlock;
using tile::Major;

template <class T>
struct Problem {
  Mat<const T> a, b;
  T* c;
  const int32_t *row_offsets, *col_indices;
  int block_rows, k;
};

template <class T, Major kA, Major kB>
struct SddWork {
  using Product = sparse::BlockProduct<T, kA, kB>;
  using SourceA = tile::Source<T, kBlock, kA, Product::kThreads, true>;
  using SourceB = tile::Source<T, kBlock, kB, Product::kThreads, true>;
  struct Tile {
    int block;
  };

  const Problem<T>& p;

  __device__ bool find(int index, Tile& t) const {
    t.block = index;
    return index < p.row_offsets[p.block_rows];
  }

  __device__ int open(const Tile& t, SourceA& a, SourceB& b) const {
    const int row = sparse::line_of(p.row_offsets, p.block_rows, t.block) * kBlock,
              col = p.col_indices[t.block] * kBlock;
    sparse::point(a, sparse::dense_at<T, kA>(p.a, row, 0), p.a.ld, kBlock, p.k);
    sparse::point(b, sparse::dense_at<T, kB>(p.b, col, 0), p.b.ld, kBlock, p.k);
    return tile::tiles(p.k, tile::kDepth<T>);
  }

  __device__ void store(const Tile& t, const Product& product) const {
    const tile::Output<T> out{p.c + int64_t{t.block} * kBlock * kBlock,
                              kBlock,
                              kBlock,
                              kBlock,
                              /*vector=*/true,
                              /*accumulate=*/false};
    product.store(out, tile::Plain{});
  }
};

// A block of threads takes stored blocks blockIdx.x, + gridDim.x, ...
template <class T, Major kA, Major kB>
__global__ void __launch_bounds__((sparse::kThreads<T, kA, kB>))
    block_sdd_kernel(const __grid_constant__ Problem<T> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  SddWork<T, kA, kB> work{p};
  tile::multiply_tiles(work, shared);
}

}  // namespace

void block_sdd_cuda(const BlockSdd& x, cudaStream_t stream) {
  validate(x);
  const BlockTopology& t = x.topology;
  sparse::check_cuda_block(t);
  if (t.blocks == 0) return;
  sparse::check_cuda_operand("a", x.a.matrix);
  sparse::check_cuda_operand("b", x.b.matrix);
  sparse::check_cuda_operand("c", x.c);
  if (sparse::takes_wgmma(x.generic, x.c)) return sparse::block_sdd_sm90(x, stream);
  dispatch_float(x.c.dtype, [&]<class T>() {
    sparse::dispatch_majors(!x.a.transpose, x.b.transpose, [&]<Major kA, Major kB>() {
      const Problem<T> p{.a = x.a.matrix.as<T>(),
                         .b = x.b.matrix.as<T>(),
                         .c = static_cast<T*>(x.c.data),
                         .row_offsets = t.row_offsets,
                         .col_indices = t.col_indices,
                         .block_rows = static_cast<int>(t.rows / kBlock),
                         .k = static_cast<int>(x.a.transpose ? x.a.matrix.rows : x.a.matrix.cols)};
      const auto shape = sparse::shape(t.blocks, sparse::kThreads<T, kA, kB>);
      tile::launch(block_sdd_kernel<T, kA, kB>, shape, stream, p);
    });
  });
}

}  // namespace troupe
