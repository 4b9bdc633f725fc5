#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/fp8_scale.h"
#include "troupe/kernels/device/async_copy.cuh"
#include "troupe/kernels/device/e4m3.cuh"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/device/tensor_map.cuh"
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"

namespace troupe {
namespace {

constexpr int kTile = static_cast<int>(kFp8Tile);
constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kBlocksHere = 2;             // of row_tiles_kernel, on a multiprocessor at a time
constexpr int kWarpRows = kTile / kWarps;  // 16: what a column of the transposed tile takes at once

// A warp's 16 rows of a tile: lane l has columns 4 l .. 4 l + 3 of each.
struct Rows16 {
  Pack<BF16, 4> row[kWarpRows];

  __device__ float at(int i, int j) const { return static_cast<float>(row[i].v[j]); }
  __device__ uint32_t top(int i, float factor) const {  // max |factor x| of this lane's part
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) top = max(top, magnitude(at(i, j) * factor));
    return top;
  }
  __device__ uint32_t bytes(int i, float factor, const Fp8Scale& s) const {
    const float by = factor * s.inverse;
    return e4m3_pair(at(i, 0) * by, at(i, 1) * by) | e4m3_pair(at(i, 2) * by, at(i, 3) * by) << 16;
  }
};

// x is at row 0 of the tile, `valid` of whose rows exist.
__device__ __forceinline__ Rows16 load_rows(const BF16* x, int64_t ld, int valid) {
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  Rows16 rows;
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    const int r = warp * kWarpRows + i;
    if (r < valid) {
      rows.row[i] = load_pack<4>(x + r * ld + 4 * lane);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) rows.row[i].v[j] = BF16(0.0f);
    }
  }
  return rows;
}

// Over the block; or, of no thread, `largest` where that is not null. All threads are past what they
// did before it either way.
__device__ __forceinline__ uint32_t block_max(uint32_t top, const float* largest,
                                              uint32_t* shared) {
  if (largest != nullptr) {
    __syncthreads();
    return magnitude(*largest);
  }
  top = __reduce_max_sync(kWholeWarp, top);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = max(top, shared[w]);
  return top;
}

// word[i]: the lane's four columns of row i, a byte each. They leave as 128 columns of 128 bytes;
// of 16 rows, place p holds row fragment_order(p), or row p. A column's 16 bytes of a warp are in
// shared memory at (warp ^ lane) so that eight lanes' are in different banks.
template <bool kFragments>
__device__ __forceinline__ void store_transposed(const uint32_t (&word)[kWarpRows], uint8_t* to,
                                                 int64_t ld, uint4* tile) {
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t out[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t row[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) row[p] = word[kFragments ? fragment_order(4 * q + p) : 4 * q + p];
      const uint32_t pick = 0x40u + 0x11u * j;  // byte j of both
      out[q] =
          __byte_perm(__byte_perm(row[0], row[1], pick), __byte_perm(row[2], row[3], pick), 0x5410);
    }
    tile[(4 * lane + j) * kWarps + (warp ^ (lane & 7))] =
        make_uint4(out[0], out[1], out[2], out[3]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile * kWarps / kThreads; ++i) {
    const int column = i * (kThreads / kWarps) + threadIdx.x / kWarps, part = threadIdx.x % kWarps;
    *reinterpret_cast<uint4*>(to + column * ld + 16 * part) =
        tile[column * kWarps + (part ^ (column / 4 & 7))];
  }
}

// A block a tile of 128 x 128, read once. Bound by memory.
__global__ void __launch_bounds__(kThreads)
    weight_tiles_kernel(Mat<const BF16> w, int64_t matrix_rows, Mat<uint8_t> rows,
                        uint8_t* transposed, float* scales, const float* largest) {
  __shared__ uint4 tile[kTile * kWarps];
  __shared__ uint32_t tops[kWarps];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int64_t across = w.cols / kTile;
  const int64_t row = blockIdx.x / across * kTile, column = blockIdx.x % across * kTile;
  const Rows16 x = load_rows(w.row(row) + column, w.ld, kTile);
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) top = max(top, x.top(i, 1.0f));
  const int64_t e = row / matrix_rows;
  const float* const given = largest == nullptr ? nullptr : largest + e;
  const Fp8Scale scale = fp8_scale(block_max(top, given, tops));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.scale;
  uint32_t word[kWarpRows];
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    word[i] = x.bytes(i, 1.0f, scale);
    if (rows.data == nullptr) continue;
    *reinterpret_cast<uint32_t*>(rows.row(row + warp * kWarpRows + i) + column + 4 * lane) =
        word[i];
  }
  if (transposed == nullptr) return;
  const int64_t in_matrix = row - e * matrix_rows;
  store_transposed<false>(word, transposed + (e * w.cols + column) * matrix_rows + in_matrix,
                          matrix_rows, tile);
}

// Which rows a block of 128 has: those of the last expert e whose first block, offset[e] / 128 + e,
// is not past it. A warp looks at 32 experts at a time.
struct BlockRows {
  int64_t begin;
  int count;  // at most 128; none or less: a block that no expert has
};
__device__ __forceinline__ BlockRows rows_of(const Fp8RowTiles& a, int64_t block, int lane) {
  int64_t expert = 0;
  for (int64_t e = lane; e - lane < a.experts; e += kWarpLanes) {
    const bool before = e < a.experts && a.expert_offset[e] / kTile + e <= block;
    const int here = __popc(__ballot_sync(kWholeWarp, before));
    if (here > 0) expert = e - lane + here - 1;
    if (here < kWarpLanes) break;
  }
  const int64_t first = a.expert_offset[expert], end = a.expert_offset[expert + 1];
  const int64_t begin = first + (block - (first / kTile + expert)) * kTile;
  return {begin, static_cast<int>(min(end - begin, int64_t{kTile}))};
}

// What a block of threads is to round next. Lane i of a warp has the factor of the warp's row i.
struct RowTile {
  int64_t block, column_block, begin;
  int valid;
  float factors;
};
__device__ __forceinline__ RowTile find_tile(const Fp8RowTiles& a, int64_t index, int64_t across) {
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int64_t block = index / across;
  const BlockRows span = rows_of(a, block, lane);
  const int row = warp * kWarpRows + lane;
  float factors = 1.0f;
  if (a.factor != nullptr && lane < kWarpRows && row < span.count) {
    const int source = a.row_src[span.begin + row];
    if (source >= 0) factors = a.factor[source];
  }
  return {block, index - block * across, span.begin, span.count, factors};
}

constexpr int kRowPieces = kTile * 2 / 16;                   // 16 bytes each, of a row of a tile
constexpr uint32_t kWarpTile = kWarpRows * kRowPieces * 16;  // a warp's 16 rows

// A warp asks for its 16 rows of a tile; rows that do not exist become zeros.
__device__ __forceinline__ void ask_for_rows(const Mat<const BF16>& in, const RowTile& t,
                                             uint32_t to) {
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const BF16* const at = in.data + t.column_block * kTile;
#pragma unroll
  for (int i = 0; i < kWarpRows * kRowPieces / kWarpLanes; ++i) {
    const int row = 2 * i + lane / kRowPieces, r = warp * kWarpRows + row;
    const bool exists = r < t.valid;
    sm90::copy16(to + row * kRowPieces * 16 + lane % kRowPieces * 16,
                 at + (exists ? t.begin + r : 0) * in.ld + lane % kRowPieces * 8, exists ? 16 : 0);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ Rows16 rows_from(const uint8_t* warp_tile) {
  Rows16 rows;
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    rows.row[i] = *reinterpret_cast<const Pack<BF16, 4>*>(warp_tile + i * kRowPieces * 16 +
                                                          threadIdx.x % kWarpLanes * 8);
  }
  return rows;
}

// Tiles of 128 rows of one expert x 128 columns, each read once, both outputs from registers; the
// next one comes to shared memory meanwhile. kGiven: scales are of the given maxima. Bound by memory.
template <bool kGiven>
__global__ void __launch_bounds__(kThreads)
    row_tiles_kernel(const __grid_constant__ Fp8RowTiles a, Mat<const BF16> in, int64_t count) {
  extern __shared__ __align__(16) uint8_t rows_ahead[];
  __shared__ uint4 tile[kTile * kWarps];
  __shared__ uint32_t tops[kWarps];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int64_t across = in.cols / kTile, R = in.rows;
  const int first = warp * kWarpRows;
  uint8_t* const mine = rows_ahead + warp * kWarpTile;
  Fp8Scale given_rows{};
  if (kGiven && a.row_largest != nullptr) given_rows = fp8_scale(magnitude(*a.row_largest));
  int64_t index = blockIdx.x;
  RowTile now = find_tile(a, index, across);
  ask_for_rows(in, now, sm90::shared_address(mine));
  for (int turn = 0; index < count; ++turn) {
    const int64_t next_index = index + gridDim.x;
    RowTile next{};
    if (next_index < count) {
      next = find_tile(a, next_index, across);
      ask_for_rows(in, next, sm90::shared_address(mine + (turn + 1) % 2 * (kWarps * kWarpTile)));
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncwarp();
    if (now.valid > 0) {
      const Rows16 x = rows_from(mine + turn % 2 * (kWarps * kWarpTile));
      const int64_t column = now.column_block * kTile;
      uint32_t top = 0;
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
        if (!kGiven) top = max(top, x.top(i, __shfl_sync(kWholeWarp, now.factors, i)));
        if (a.rows.data == nullptr) continue;
        Fp8Scale scale = given_rows;
        if (!kGiven) scale = fp8_scale(__reduce_max_sync(kWholeWarp, x.top(i, 1.0f)));
        if (first + i >= now.valid) continue;
        const int64_t r = now.begin + first + i;
        if (lane == 0) a.row_scales[now.column_block * R + r] = scale.scale;
        *reinterpret_cast<uint32_t*>(a.rows.row(r) + column + 4 * lane) = x.bytes(i, 1.0f, scale);
      }
      if (a.columns != nullptr) {
        const float* const given = kGiven ? a.block_largest : nullptr;
        const Fp8Scale scale = fp8_scale(block_max(top, given, tops));
        if (threadIdx.x == 0) a.block_scales[now.block * across + now.column_block] = scale.scale;
        uint32_t word[kWarpRows];
#pragma unroll
        for (int i = 0; i < kWarpRows; ++i) {
          const float factor = __shfl_sync(kWholeWarp, now.factors, i);
          word[i] = first + i < now.valid ? x.bytes(i, factor, scale) : 0;
        }
        const int64_t ld = fp8_row_blocks(R, a.experts) * kTile;
        store_transposed<true>(word, a.columns + column * ld + now.block * kTile, ld, tile);
      }
    }
    __syncwarp();  // The warp's rows are read: the one after next may take their place.
    now = next, index = next_index;
  }
}

unsigned blocks_of(int64_t rows_of_tiles, int64_t columns) {
  const int64_t blocks = rows_of_tiles * (columns / kTile);
  TROUPE_CHECK(blocks <= 0x7fffffff, "tiles", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace

void fp8_weight_tiles_cuda(const Fp8WeightTiles& a, cudaStream_t stream) {
  validate(a);
  if (a.w.rows == 0) return;
  weight_tiles_kernel<<<blocks_of(a.w.rows / kTile, a.w.cols), kThreads, 0, stream>>>(
      a.w.as<BF16>(), a.matrix_rows, a.rows, a.transposed, a.scales, a.largest);
  TROUPE_LAUNCH_CHECK(stream);
}

void fp8_row_tiles_cuda(const Fp8RowTiles& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows == 0) return;
  const unsigned tiles = blocks_of(fp8_row_blocks(a.x.rows, a.experts), a.x.cols);
  constexpr int kAhead = 2 * kWarps * kWarpTile;
  const bool given = a.row_largest != nullptr || a.block_largest != nullptr;
  const auto kernel = given ? row_tiles_kernel<true> : row_tiles_kernel<false>;
  TROUPE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kAhead));
  const auto room = static_cast<unsigned>(kBlocksHere * sm90::num_multiprocessors());
  kernel<<<std::min(tiles, room), kThreads, kAhead, stream>>>(a, a.x.as<BF16>(), tiles);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
