// The CPU path: tile by tile of the result, operands packed as float (or double) first, so that the
// innermost loop is a row of contiguous products. Tiles are shared out over the pool; a tile's sum
// is one task's, over the stored blocks in order.
#include <algorithm>
#include <vector>

#include "troupe/core/number/round.h"
#include "troupe/kernels/block_sparse/block_sparse.h"
#include "troupe/kernels/block_sparse/lines.h"

namespace troupe {
namespace {

using sparse::Lines;

// c [m, n] += a [m, k] b [k, n], tiles of at most `block` each way.
template <class W>
class TileSum {
 public:
  explicit TileSum(int64_t block)
      : ld_(block), a_(block * block), b_(block * block), c_(block * block) {}

  void clear() { std::fill(c_.begin(), c_.end(), W(0)); }

  // a(i, k) and b(k, j) are the operands' elements.
  template <class A, class B>
  void add(int64_t m, int64_t n, int64_t k, const A& a, const B& b) {
    pack(a_, m, k, a);
    pack(b_, k, n, b);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t kk = 0; kk < k; ++kk) add_row(a_[i * ld_ + kk], &b_[kk * ld_], &c_[i * ld_], n);
    }
  }

  template <class T>
  void store(const Mat<T>& out, int64_t row, int64_t col, int64_t m, int64_t n) const {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) out(row + i, col + j) = static_cast<T>(c_[i * ld_ + j]);
    }
  }

 private:
  static void add_row(W factor, const W* b, W* c, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) c[j] += factor * b[j];
  }

  template <class Element>
  void pack(std::vector<W>& to, int64_t rows, int64_t cols, const Element& element) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) to[i * ld_ + j] = element(i, j);
    }
  }

  int64_t ld_;
  std::vector<W> a_, b_, c_;
};

// Element (i, j) of op(X) from (row, col) on.
template <class T>
auto part(const DenseOperand& x, int64_t row, int64_t col) {
  return [m = x.matrix.as<T>(), t = x.transpose, row, col](int64_t i, int64_t j) {
    return static_cast<Wide<T>>(t ? m(col + j, row + i) : m(row + i, col + j));
  };
}

template <class T>
auto stored_block(const MatRef& values, bool transpose, int64_t first_row) {
  return [m = values.as<T>(), transpose, first_row](int64_t i, int64_t j) {
    return static_cast<Wide<T>>(transpose ? m(first_row + j, i) : m(first_row + i, j));
  };
}

int64_t row_of_block(const BlockTopology& t, int64_t p) {
  const int32_t* end = t.row_offsets + t.rows / t.block + 1;
  return std::upper_bound(t.row_offsets, end, p) - t.row_offsets - 1;
}

// Calls sum_tile(line, first, size) for each tile of each of `lines` lines by `width` elements.
template <class W, class SumTile>
void each_tile(const Pool& pool, int64_t block, int64_t lines, int64_t width,
               const SumTile& sum_tile) {
  const int64_t across = ceil_div(width, block);
  pool(lines * across, 1, [&](int64_t begin, int64_t end) {
    TileSum<W> tile(block);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % across * block;
      tile.clear();
      sum_tile(tile, task / across, first, std::min(block, width - first));
    }
  });
}

}  // namespace

void block_sdd_cpu(const BlockSdd& x, const Pool& pool) {
  validate(x);
  const BlockTopology& t = x.topology;
  const int64_t B = t.block, K = x.a.transpose ? x.a.matrix.rows : x.a.matrix.cols;
  dispatch_float64(x.c.dtype, [&]<class T>() {
    using W = Wide<T>;
    each_tile<W>(pool, B, t.row_offsets[t.rows / B], B,
                 [&](TileSum<W>& tile, int64_t p, int64_t /*first*/, int64_t /*size*/) {
                   const int64_t row = row_of_block(t, p) * B, col = t.col_indices[p] * B;
                   for (int64_t k = 0; k < K; k += B) {
                     tile.add(B, B, std::min(B, K - k), part<T>(x.a, row, k), part<T>(x.b, k, col));
                   }
                   tile.store(x.c.as<T>(), p * B, 0, B, B);
                 });
  });
}

void block_dsd_cpu(const BlockDsd& x, const Pool& pool) {
  validate(x);
  const int64_t B = x.topology.block;
  const Lines lines = sparse::summed_lines(x);
  dispatch_float64(x.c.dtype, [&]<class T>() {
    using W = Wide<T>;
    each_tile<W>(pool, B, x.c.rows / B, x.c.cols,
                 [&](TileSum<W>& tile, int64_t line, int64_t first, int64_t size) {
                   for (int32_t q = lines.offsets[line]; q < lines.offsets[line + 1]; ++q) {
                     tile.add(B, size, B, stored_block<T>(x.a, x.transpose_a, lines.block(q) * B),
                              part<T>(x.b, lines.across[q] * B, first));
                   }
                   tile.store(x.c.as<T>(), line * B, first, B, size);
                 });
  });
}

void block_dds_cpu(const BlockDds& x, const Pool& pool) {
  validate(x);
  const int64_t B = x.topology.block;
  const Lines lines = sparse::summed_lines(x);
  dispatch_float64(x.c.dtype, [&]<class T>() {
    using W = Wide<T>;
    each_tile<W>(pool, B, x.c.cols / B, x.c.rows,
                 [&](TileSum<W>& tile, int64_t line, int64_t first, int64_t size) {
                   for (int32_t q = lines.offsets[line]; q < lines.offsets[line + 1]; ++q) {
                     tile.add(size, B, B, part<T>(x.a, first, lines.across[q] * B),
                              stored_block<T>(x.b, x.transpose_b, lines.block(q) * B));
                   }
                   tile.store(x.c.as<T>(), first, line * B, size, B);
                 });
  });
}

}  // namespace troupe
