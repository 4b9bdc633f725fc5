// Products of tiles: C[128, kN] = A[128, K] B[K, kN], whatever the operands' order in memory,
// summed over k in rising order in fp32.
//   TensorProduct   16-bit operands, mma.sync: warps of 64x64, fragments double-buffered
//   FmaProduct      fp32 operands, plain FFMA: 8x8 a thread
//   Pipeline        stages of shared memory, filled by cp.async all but one ahead
//   multiply_tiles  a block's loop over its tiles; the first stages of the next tile are on their
//                   way while the last tile is stored
#pragma once

#include <cstdint>

#include "troupe/kernels/device/tile_output.cuh"
#include "troupe/kernels/device/tile_source.cuh"

namespace troupe::tile {

// How a warp's 64 rows (of M or N) of an operand are read as fragments, 16 rows and 16 of k at a
// time. Both operands and both orders are one scheme: a fragment's four 8x8 matrices come in the
// order (rows, k), (rows + 8, k), (rows, k + 8), (rows + 8, k + 8) for A, with the middle two
// exchanged for B; what is contiguous in memory decides who is the row of a matrix.
template <class T, int kSize, Major kMajor, bool kIsA>
class FragmentReader {
  using Tile = Layout<T, kSize, kMajor>;

 public:
  __device__ explicit FragmentReader(int first_row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool rows_first = kIsA == (kMajor == Major::kK);
    const int row = rows_first ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int chunk = rows_first ? lane / 16 : lane / 8 % 2;
    at_ = kMajor == Major::kK ? Tile::at(first_row + row, chunk)
                              : Tile::at(row, first_row / kChunk<T> + chunk);
  }

  // Rows 16 i of the warp's, k 16 substep of the stage's. The twist of a layout depends on the lane
  // alone, so a step along the chunks is an exclusive or.
  __device__ __forceinline__ void read(uint32_t (&out)[4], uint32_t tile, int i,
                                       int substep) const {
    if constexpr (kMajor == Major::kK) {
      sm80::load_matrices<false>(out, ((tile + at_) ^ (substep << 5)) + i * 16 * Tile::kPitch);
    } else {
      sm80::load_matrices<true>(out, ((tile + at_) ^ (i << 5)) + substep * 16 * Tile::kPitch);
    }
  }

 private:
  uint32_t at_;
};

// Warps have 64 rows and kWarpN columns: 64, or 32 where registers are wanted elsewhere.
template <class T, int kSizeM, int kSizeN, Major kMajorA, Major kMajorB, int kWarpN>
class TensorProduct {
  static constexpr int kWarpsN = kSizeN / kWarpN, kTilesN = kWarpN / 8;

 public:
  using Element = T;
  static constexpr int kM = kSizeM, kN = kSizeN;
  static constexpr Major kA = kMajorA, kB = kMajorB;
  static constexpr int kThreads = kM / 64 * kWarpsN * 32;
  static constexpr int kSubsteps = kDepth<T> / 16;

  struct Fragments {
    uint32_t a[4][4];
    uint32_t b[kTilesN][2];
  };

  __device__ TensorProduct() : a_(warp_row()), b_(warp_col()) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 16 * kTilesN; ++i) sum_[i / 4 / kTilesN][i / 4 % kTilesN][i % 4] = 0;
  }

  __device__ __forceinline__ void load(Fragments& f, uint32_t a, uint32_t b, int substep) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a_.read(f.a[i], a, i, substep);
#pragma unroll
    for (int i = 0; i < kTilesN / 2; ++i) {
      uint32_t pair[4];
      b_.read(pair, b, i, substep);
      f.b[2 * i][0] = pair[0];
      f.b[2 * i][1] = pair[1];
      f.b[2 * i + 1][0] = pair[2];
      f.b[2 * i + 1][1] = pair[3];
    }
  }

  __device__ __forceinline__ void multiply(const Fragments& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) sm80::mma<T>(sum_[i][j], f.a[i], f.b[j]);
    }
  }

  // All threads call it. terms.value(row(r), column(c), sum) is what is stored.
  template <class Out, class Terms>
  __device__ __forceinline__ void store(const Output<Out>& out, const Terms& terms) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = warp_row() + lane / 4, col = warp_col() + lane % 4 * 2;
    float column[kTilesN][2];
#pragma unroll
    for (int j = 0; j < 2 * kTilesN; ++j)
      column[j / 2][j % 2] = terms.column(col + j / 2 * 8 + j % 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto at_row = terms.row(row + 8 * i);
      float v[kTilesN][2];
#pragma unroll
      for (int j = 0; j < 2 * kTilesN; ++j) {
        v[j / 2][j % 2] =
            Terms::value(at_row, column[j / 2][j % 2], sum_[i / 2][j / 2][i % 2 * 2 + j % 2]);
      }
      out.put_fragments(row + 8 * i, col, v);
    }
  }

 private:
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 / kWarpsN * 64;
  }
  __device__ static int warp_col() {
    return static_cast<int>(threadIdx.x) / 32 % kWarpsN * kWarpN;
  }

  FragmentReader<T, kM, kMajorA, true> a_;
  FragmentReader<T, kN, kMajorB, false> b_;
  float sum_[4][kTilesN][4];  // [16 rows][8 columns][mma.sync's d]
};

// A thread's 8 rows (or columns): its own chunk of four in each half where those are together in
// memory, every 16th where k does.
template <int kSize, Major kMajor>
struct ThreadRows {
  using Tile = Layout<float, kSize, kMajor>;
  static_assert(kSize == 128);

  __device__ static int at(int thread, int i) {
    return kMajor == Major::kK ? thread + 16 * i : i / 4 * 64 + thread * 4 + i % 4;
  }

  // v[k][i] for four of k.
  __device__ static __forceinline__ void read(float (&v)[4][8], uint32_t tile, int thread,
                                              int substep) {
    if constexpr (kMajor == Major::kK) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 x = sm80::load_shared_float4(tile + Tile::at(thread + 16 * i, substep));
        v[0][i] = x.x, v[1][i] = x.y, v[2][i] = x.z, v[3][i] = x.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int k = i / 2, half = i % 2 * 4;
        const float4 x =
            sm80::load_shared_float4(tile + Tile::at(4 * substep + k, half * 4 + thread));
        v[k][half] = x.x, v[k][half + 1] = x.y, v[k][half + 2] = x.z, v[k][half + 3] = x.w;
      }
    }
  }
};

template <int kSizeM, int kSizeN, Major kMajorA, Major kMajorB>
class FmaProduct {
  using RowsA = ThreadRows<kSizeM, kMajorA>;
  using RowsB = ThreadRows<kSizeN, kMajorB>;

 public:
  using Element = float;
  static constexpr int kM = kSizeM, kN = kSizeN;
  static constexpr Major kA = kMajorA, kB = kMajorB;
  static constexpr int kThreads = 256;
  static constexpr int kSubsteps = kDepth<float> / 4;

  struct Fragments {
    float a[4][8], b[4][8];
  };

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 64; ++i) sum_[i / 8][i % 8] = 0;
  }

  __device__ __forceinline__ void load(Fragments& f, uint32_t a, uint32_t b, int substep) const {
    RowsA::read(f.a, a, thread_row(), substep);
    RowsB::read(f.b, b, thread_col(), substep);
  }

  __device__ __forceinline__ void multiply(const Fragments& f) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        sum_[i / 8][i % 8] = fmaf(f.a[k][i / 8], f.b[k][i % 8], sum_[i / 8][i % 8]);
      }
    }
  }

  template <class Out, class Terms>
  __device__ __forceinline__ void store(const Output<Out>& out, const Terms& terms) const {
    float column[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) column[j] = terms.column(RowsB::at(thread_col(), j));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = RowsA::at(thread_row(), i);
      const auto at_row = terms.row(row);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        out.put(row, RowsB::at(thread_col(), j), Terms::value(at_row, column[j], sum_[i][j]));
      }
    }
  }

 private:
  __device__ static int thread_row() {
    return static_cast<int>(threadIdx.x / 16);
  }
  __device__ static int thread_col() {
    return static_cast<int>(threadIdx.x % 16);
  }

  float sum_[8][8];
};

template <class T, int kM, int kN, Major kA, Major kB, int kWarpN>
struct ProductOf {
  using Type = TensorProduct<T, kM, kN, kA, kB, kWarpN>;
};
template <int kM, int kN, Major kA, Major kB, int kWarpN>
struct ProductOf<float, kM, kN, kA, kB, kWarpN> {
  using Type = FmaProduct<kM, kN, kA, kB>;
};
// kWarpN means nothing in fp32.
template <class T, int kM, int kN, Major kA, Major kB, int kWarpN>
using Product = typename ProductOf<T, kM, kN, kA, kB, kWarpN>::Type;

constexpr int kStages = 4;

constexpr int stage_bytes(int m, int n) {
  return (m + n) * 64;
}
constexpr int pipeline_bytes(int m, int n) {
  return kStages * stage_bytes(m, n);
}

// The stages of one block. Every thread commits one group a stage, empty ones at the end, so that a
// count of groups tells which stage has landed.
template <class Product, int kDeep>
class Pipeline {
  static constexpr int kStageBytes = stage_bytes(Product::kM, Product::kN);
  static constexpr int kOffsetB = Product::kM * 64;
  static_assert(Product::kSubsteps % 2 == 0, "fragments change places an even number of times");
  static_assert(kDeep >= 2, "one stage is read while the next one lands");

 public:
  __device__ explicit Pipeline(const void* shared) : base_(sm80::shared_address(shared)) {}

  // Starts the first stages. No thread may still read a stage.
  template <class SourceA, class SourceB>
  __device__ __forceinline__ void fill(SourceA& a, SourceB& b, int steps) const {
#pragma unroll
    for (int s = 0; s < kDeep - 1; ++s) {
      if (s < steps) load(a, b, s * kStageBytes);
      sm80::copy_commit();
    }
  }

  // product += A B over `steps` stages of which fill() has started the first.
  template <class SourceA, class SourceB>
  __device__ __forceinline__ void run(Product& product, SourceA& a, SourceB& b, int steps) const {
    if (steps == 0) return;
    typename Product::Fragments fragments[2];
    int read = 0, write = (kDeep - 1) * kStageBytes;
    await_stage();
    product.load(fragments[0], base_, base_ + kOffsetB, 0);
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int sub = 0; sub < Product::kSubsteps; ++sub) {
        const int next = (sub + 1) % Product::kSubsteps;
        if (next == 0) {
          // Also: from here on nobody reads stage `step`, which the next step overwrites.
          await_stage();
          read = advanced(read);
        }
        product.load(fragments[(sub + 1) % 2], base_ + read, base_ + read + kOffsetB, next);
        if (sub == 0) {
          if (step + kDeep - 1 < steps) load(a, b, write);
          sm80::copy_commit();
          write = advanced(write);
        }
        product.multiply(fragments[sub % 2]);
      }
    }
  }

 private:
  // The oldest stage under way has landed, for all threads.
  __device__ static __forceinline__ void await_stage() {
    sm80::copy_wait<kDeep - 2>();
    __syncthreads();
  }
  __device__ static int advanced(int stage) {
    return stage == (kDeep - 1) * kStageBytes ? 0 : stage + kStageBytes;
  }
  template <class SourceA, class SourceB>
  __device__ __forceinline__ void load(SourceA& a, SourceB& b, int stage) const {
    a.load(base_ + stage);
    b.load(base_ + stage + kOffsetB);
  }

  uint32_t base_;
};

// Work says which tiles there are, where their operands are and where the result goes:
//   Product, SourceA, SourceB, Tile
//   bool find(int index, Tile&)           tile `index`, or false from the last on; indices rise
//   int open(const Tile&, a, b)           points the sources at it; how many stages of k it has
//   void store(const Tile&, product)
template <int kDeep = kStages, class Work>
__device__ __forceinline__ void multiply_tiles(Work& work, const void* shared) {
  typename Work::Tile tile, next;
  int index = static_cast<int>(blockIdx.x);
  if (!work.find(index, tile)) return;
  typename Work::SourceA a;
  typename Work::SourceB b;
  typename Work::Product product;
  const Pipeline<typename Work::Product, kDeep> pipeline(shared);
  int steps = work.open(tile, a, b);
  pipeline.fill(a, b, steps);
  for (bool more = true; more; tile = next) {
    index += static_cast<int>(gridDim.x);
    more = work.find(index, next);
    product.clear();
    pipeline.run(product, a, b, steps);
    __syncthreads();
    if (more) {
      steps = work.open(next, a, b);
      pipeline.fill(a, b, steps);
    }
    work.store(tile, product);
  }
}

}  // namespace troupe::tile
