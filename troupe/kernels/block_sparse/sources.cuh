// Operands of a product along a line of stored blocks: each block is one piece of k, with its own
// place in memory. B = 128.
#pragma once

#include "troupe/kernels/block_sparse/block_sparse_sm90.h"
#include "troupe/kernels/block_sparse/lines.h"
#include "troupe/kernels/device/build_code.h"
#include "troupe/kernels/device/tile_launch.cuh"
#include "troupe/kernels/device/tile_order.cuh"
#include "troupe/kernels/device/tile_product.cuh"

namespace troupe::sparse {

using tile::Major;

constexpr int kBlock = 128;

// With k contiguous in neither operand, 255 registers are too few for 64x64 of a tile a warp.
template <class T, Major kA, Major kB>
using BlockProduct =
    tile::Product<T, kBlock, kBlock, kA, kB, kA == Major::kMN && kB == Major::kMN ? 32 : 64>;
template <class T, Major kA, Major kB>
inline constexpr int kThreads = BlockProduct<T, kA, kB>::kThreads;

// Points an inner source at 128 rows of M (or N) and `k` of k. `data` is at the first of both;
// `rows` is how many there are.
template <class T, int kThreadCount>
__device__ __forceinline__ void point(tile::KMajorSource<T, kBlock, kThreadCount, true>& source,
                                      const T* data, int64_t ld, int rows, int k) {
  source.open(data, ld, rows, k);
}
template <class T, int kThreadCount>
__device__ __forceinline__ void point(tile::MNMajorSource<T, kBlock, kThreadCount, true>& source,
                                      const T* data, int64_t ld, int rows, int k) {
  source.open({.data = data, .ld = static_cast<int>(ld), .cols = rows, .begin = 0, .end = k});
}

// A dense operand from k on, for 128 rows of M (or N) from `row` on: op's rows are along memory's
// rows if k is contiguous, along its columns if not.
template <class T, Major kMajor>
__device__ __forceinline__ const T* dense_at(const Mat<const T>& x, int64_t row, int64_t k) {
  return kMajor == Major::kK ? x.row(row) + k : x.row(k) + row;
}

// The stored blocks of a line, one after the other.
template <class T, Major kMajor, int kThreadCount>
class StoredBlocks {
 public:
  __device__ __forceinline__ void open(const T* values, const Lines& lines, int begin, int end) {
    values_ = values;
    lines_ = lines;
    next_ = begin;
    end_ = end;
    left_ = 0;
    look_up();
  }
  __device__ __forceinline__ void load(uint32_t dst) {
    if (left_ == 0) {
      point(inner_, values_ + int64_t{block_} * kBlock * kBlock, kBlock, kBlock, kBlock);
      left_ = kBlock / tile::kDepth<T>;
      ++next_;
      look_up();
    }
    inner_.load(dst);
    --left_;
  }

 private:
  // A block early: the copies must not wait for the index.
  __device__ __forceinline__ void look_up() { block_ = next_ < end_ ? lines_.block(next_) : 0; }

  tile::Source<T, kBlock, kMajor, kThreadCount, true> inner_;
  const T* values_;
  Lines lines_;
  int next_, end_, block_, left_;
};

// The rows of a dense operand that those blocks meet.
template <class T, Major kMajor, int kThreadCount>
class MetByBlocks {
 public:
  __device__ __forceinline__ void open(const Mat<const T>& dense, int row, int rows,
                                       const int32_t* across, int begin, int end) {
    first_ = dense_at<T, kMajor>(dense, row, 0);
    ld_ = dense.ld;
    rows_ = rows;
    across_ = across;
    next_ = begin;
    end_ = end;
    left_ = 0;
    look_up();
  }
  __device__ __forceinline__ void load(uint32_t dst) {
    if (left_ == 0) {
      const int64_t k = int64_t{place_} * kBlock;
      point(inner_, first_ + (kMajor == Major::kK ? k : k * ld_), ld_, rows_, kBlock);
      left_ = kBlock / tile::kDepth<T>;
      ++next_;
      look_up();
    }
    inner_.load(dst);
    --left_;
  }

 private:
  __device__ __forceinline__ void look_up() { place_ = next_ < end_ ? across_[next_] : 0; }

  tile::Source<T, kBlock, kMajor, kThreadCount, true> inner_;
  const T* first_;
  int64_t ld_;
  const int32_t* across_;
  int rows_, next_, end_, place_, left_;
};

// Persistent blocks of a launch: registers hold two blocks of 128 threads, or one of 256.
inline tile::LaunchShape shape(int64_t tiles, int threads) {
  const int64_t resident =
      int64_t{tile::device_attribute(cudaDevAttrMultiProcessorCount)} * (256 / threads);
  TROUPE_CHECK(tiles + resident < (int64_t{1} << 31), "tiles", tiles);
  return {tiles < resident ? tiles : resident, threads, tile::pipeline_bytes(kBlock, kBlock)};
}

template <class View>
void check_cuda_operand(const char* what, const View& x) {
  TROUPE_CHECK(tile::rows_aligned(x.data, x.ld, size_bytes(x.dtype)), what,
               "has rows that do not begin at multiples of 16 bytes; leading dimension", x.ld);
}

// Does the device run this build's code for Hopper, which computes it, and is no other way asked for? `operands` begin rows at multiples
// of 16 bytes, which the copy engine wants too; so must the result, whose rows must end there too:
// the engine stores 16 bytes or none.
inline bool takes_wgmma(bool generic, const MutRef& c) {
  return !generic && (c.dtype == Dtype::kBF16 || c.dtype == Dtype::kF16) &&
         tile::rows_aligned(c.data, c.ld, size_bytes(c.dtype)) &&
         c.cols * size_bytes(c.dtype) % 16 == 0 && runs_sm90_code();
}

inline void check_cuda_block(const BlockTopology& t) {
  TROUPE_CHECK(t.block == kBlock, "no CUDA kernel built for blocks of", t.block);
}

// f.operator()<kA, kB>() for how k is stored in each operand: contiguous or not.
template <class F>
void dispatch_majors(bool k_contiguous_a, bool k_contiguous_b, F&& f) {
  if (k_contiguous_a && k_contiguous_b) return f.template operator()<Major::kK, Major::kK>();
  if (k_contiguous_a) return f.template operator()<Major::kK, Major::kMN>();
  if (k_contiguous_b) return f.template operator()<Major::kMN, Major::kK>();
  f.template operator()<Major::kMN, Major::kMN>();
}

}  // namespace troupe::sparse
