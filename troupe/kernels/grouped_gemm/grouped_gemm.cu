// c = a B_e over the rows of each expert. See tile_product.cuh for how a tile is computed.
#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/block_scan.cuh"
#include "troupe/kernels/device/tile_order.cuh"
#include "troupe/kernels/device/tile_product.cuh"
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/kernels/grouped_gemm/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

using tile::Major;

constexpr int kM = 128;

// Reading element by element keeps many of them in registers at once: half the accumulators then.
// Of 64 columns two warps of 64x64 would be the whole block: there are four of 64x32.
template <class T, int kN, Major kB, bool kAligned>
using RowProduct = tile::Product<T, kM, kN, Major::kK, kB, (kAligned && kN > 64) ? 64 : 32>;

template <class T>
struct Problem {
  Mat<const T> a, b;
  Mat<T> c;
  const T* bias;
  const float *scale, *bias_scale;
  const int32_t *expert_offset, *row_src, *row_slot;
  int64_t ld_bias;
  int experts, n, k;
  bool vector, accumulate;
};

// scale * sum + bias_scale * bias, over a tile's own rows and columns.
template <class T>
struct ScaledSum {
  const T* bias;  // nullptr: none
  const float *scale, *bias_scale;
  const int32_t* row_slot;
  int first_row, rows, cols;

  struct Row {
    float scale, bias_scale;
  };
  __device__ Row row(int r) const {
    if (r >= rows) return {0, 0};
    const int64_t at = row_slot != nullptr ? row_slot[first_row + r] : first_row + r;
    return {factor(scale, at), factor(bias_scale, at)};
  }
  __device__ float column(int c) const {
    return bias != nullptr && c < cols ? static_cast<float>(bias[c]) : 0;
  }
  __device__ static float value(Row r, float bias_of_column, float sum) {
    return fmaf(r.bias_scale, bias_of_column, r.scale * sum);
  }

 private:
  __device__ static float factor(const float* factors, int64_t at) {
    return factors == nullptr ? 1 : at < 0 ? 0 : factors[at];
  }
};

template <class T, int kN, Major kB, bool kAligned>
struct RowWork {
  using Product = RowProduct<T, kN, kB, kAligned>;
  using SourceA = tile::KMajorRows<T, kM, Product::kThreads, kAligned>;
  using SourceB = tile::Source<T, kN, kB, Product::kThreads, kAligned>;
  struct Tile {
    int expert, row, rows, col;
  };

  const Problem<T>& p;
  int scanned = 0, tiles_before = 0;  // experts that end before the last tile found, their tiles

  // A warp counts the tiles of 32 experts at a time, from where it was last.
  __device__ bool find(int index, Tile& t) {
    const int lane = static_cast<int>(threadIdx.x % 32), across = tile::tiles(p.n, kN);
    for (; scanned < p.experts; scanned += 32) {
      const int e = scanned + lane;
      const int begin = e < p.experts ? p.expert_offset[e] : 0;
      const int rows = e < p.experts ? p.expert_offset[e + 1] - begin : 0;
      const int tiles = tile::tiles(rows, kM) * across, upto = warp_scan(tiles);
      const unsigned reached = __ballot_sync(kWholeWarp, tiles_before + upto > index);
      if (reached != 0) {
        const int owner = __ffs(static_cast<int>(reached)) - 1;
        t = locate(index - tiles_before - __shfl_sync(kWholeWarp, upto - tiles, owner),
                   __shfl_sync(kWholeWarp, rows, owner), across);
        t.row += __shfl_sync(kWholeWarp, begin, owner);
        t.expert = scanned + owner;
        return true;
      }
      tiles_before += __shfl_sync(kWholeWarp, upto, 31);
    }
    return false;
  }

  __device__ int open(const Tile& t, SourceA& a, SourceB& b) const {
    a.open(
        [&](int i) -> const T* {
          if (i >= t.rows) return nullptr;
          const int r = t.row + i, src = p.row_src != nullptr ? p.row_src[r] : r;
          return src < 0 ? nullptr : p.a.row(src);
        },
        p.k);
    if constexpr (kB == Major::kK) {
      b.open(p.b.row(int64_t{t.expert} * p.n + t.col), p.b.ld, p.n - t.col, p.k);
    } else {
      b.open({.data = p.b.row(int64_t{t.expert} * p.k) + t.col,
              .ld = static_cast<int>(p.b.ld),
              .cols = p.n - t.col,
              .begin = 0,
              .end = p.k});
    }
    return tile::tiles(p.k, tile::kDepth<T>);
  }

  __device__ void store(const Tile& t, const Product& product) const {
    const int cols = min(kN, p.n - t.col);
    const tile::Output<T> out{p.c.row(t.row) + t.col, p.c.ld, t.rows, cols, p.vector, p.accumulate};
    const T* bias = p.bias != nullptr ? p.bias + t.expert * p.ld_bias + t.col : nullptr;
    product.store(out, ScaledSum<T>{bias, p.scale, p.bias_scale, p.row_slot, t.row, t.rows, cols});
  }

 private:
  __device__ static Tile locate(int index, int rows, int across) {
    const auto [m, n] = tile::place(index, tile::tiles(rows, kM), across);
    return {0, m * kM, min(kM, rows - m * kM), n * kN};
  }
};

// A block takes tiles blockIdx.x, + gridDim.x, ... of all experts' tiles in order. One block
// (128x256) or two a processor; bound by the tensor cores, next by shared memory's bandwidth.
template <class T, int kN, int kStages, Major kB, bool kAligned>
__global__ void __launch_bounds__(RowProduct<T, kN, kB, kAligned>::kThreads)
    grouped_gemm_kernel(const __grid_constant__ Problem<T> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  RowWork<T, kN, kB, kAligned> work{p};
  tile::multiply_tiles<kStages>(work, shared);
}

template <class T>
Problem<T> problem(const GroupedGemm& x) {
  return {.a = x.a.as<T>(),
          .b = x.b.as<T>(),
          .c = x.c.as<T>(),
          .bias = static_cast<const T*>(x.bias.data),
          .scale = x.scale,
          .bias_scale = x.bias_scale,
          .expert_offset = x.expert_offset,
          .row_src = x.row_src,
          .row_slot = x.row_slot,
          .ld_bias = x.bias.ld,
          .experts = static_cast<int>(x.experts),
          .n = static_cast<int>(x.c.cols),
          .k = static_cast<int>(x.a.cols),
          .vector = grouped::stores_vectors(x.c),
          .accumulate = x.accumulate};
}

bool is_plain(const GroupedGemm& x) {
  return grouped::plain(x.a) && grouped::plain(x.b) && grouped::plain(x.c) &&
         x.experts <= kMaxExpertsSm90 && x.bias.data == nullptr && x.scale == nullptr &&
         !x.accumulate;
}

constexpr int kZeroThreads = 256;

// Most often there is nothing to do.
template <class T>
__global__ void __launch_bounds__(kZeroThreads) zero_rows_kernel(Mat<T> out, const int32_t* first) {
  for (int64_t r = int64_t{max(*first, 0)} + blockIdx.x; r < out.rows; r += gridDim.x) {
    for (int64_t c = threadIdx.x; c < out.cols; c += kZeroThreads) out(r, c) = T(0.0f);
  }
}

}  // namespace

void zero_rows_cuda(const ZeroRows& x, cudaStream_t stream) {
  validate(x);
  if (x.out.rows == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(x.out.rows, 528));
  dispatch_float(x.out.dtype, [&]<class T>() {
    zero_rows_kernel<<<blocks, kZeroThreads, 0, stream>>>(x.out.as<T>(), x.first);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void grouped_gemm_cuda(const GroupedGemm& x, cudaStream_t stream) {
  validate(x);
  if (x.c.rows == 0) return;
  const GemmPlan plan = choose_plan({.dtype = x.a.dtype,
                                     .experts = x.experts,
                                     .rows = x.c.rows,
                                     .rows_are_routed = true,
                                     .cols = x.c.cols,
                                     .aligned = grouped::aligned(x.a) && grouped::aligned(x.b),
                                     .plain = is_plain(x),
                                     .tile = x.tile},
                                    grouped::current_device());
  if (plan.path == Path::kSm90) {
    return rows_product_sm90_cuda(
        {x.experts, x.expert_offset, x.row_src, x.a, x.b, x.c, x.transpose_b, x.waves}, stream);
  }
  const tile::LaunchShape shape{plan.blocks, plan.threads, plan.shared_bytes};
  dispatch_float(x.a.dtype, [&]<class T>() {
    grouped::dispatch_tile<T, true>(plan, [&]<int kN, int kStages, bool kAligned>() {
      auto* kernel = x.transpose_b ? grouped_gemm_kernel<T, kN, kStages, Major::kK, kAligned>
                                   : grouped_gemm_kernel<T, kN, kStages, Major::kMN, kAligned>;
      tile::launch(kernel, shape, stream, problem<T>(x));
    });
  });
}

}  // namespace troupe
