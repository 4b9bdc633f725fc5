#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/cumsum/cumsum.h"
#include "troupe/kernels/device/block_scan.cuh"

namespace troupe {
namespace {

constexpr int kThreads = 1024;
constexpr int kPerThread = 4;
static_assert(kThreads * kPerThread == kCumsumTile);

// How rows of n elements are cut into tiles.
struct Tiles {
  int64_t n;
  int64_t per_row;
  int64_t count;  // in all rows
};

// The elements of tile `tile` of the whole array that this thread owns, zeros past the row's end.
template <class T>
struct Items {
  int64_t begin;
  int count;
  uint64_t value[kPerThread];

  __device__ Items(const T* x, const Tiles& t, int64_t tile) {
    const int64_t row = tile / t.per_row, within = tile % t.per_row * kCumsumTile;
    const int64_t first = within + int64_t{threadIdx.x} * kPerThread;
    begin = row * t.n + first;
    count = static_cast<int>(max(int64_t{0}, min(int64_t{kPerThread}, t.n - first)));
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      value[i] = i < count ? static_cast<uint64_t>(x[begin + i]) : 0;
    }
  }
  __device__ uint64_t sum() const {
    uint64_t s = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) s += value[i];
    return s;
  }
};

// Long rows, first of three steps: the sum of each tile, a block a tile.
template <class T>
__global__ void __launch_bounds__(kThreads)
    tile_sum_kernel(const T* x, Tiles tiles, uint64_t* sums) {
  __shared__ uint64_t scratch[kScanScratch];
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const Items<T> items(x, tiles, tile);
    const uint64_t total = block_scan(items.sum(), scratch).total;
    if (threadIdx.x == 0) sums[tile] = total;
  }
}

// Second: the sums of a row's tiles become what comes before each, a block a row.
__global__ void __launch_bounds__(kThreads)
    tile_offset_kernel(int64_t rows, int64_t tiles_per_row, uint64_t* sums) {
  __shared__ uint64_t scratch[kScanScratch];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    uint64_t before = 0;
    for (int64_t first = 0; first < tiles_per_row; first += kThreads) {
      const int64_t i = first + threadIdx.x;
      uint64_t* sum = &sums[row * tiles_per_row + i];
      const auto scanned = block_scan(i < tiles_per_row ? *sum : uint64_t{0}, scratch);
      if (i < tiles_per_row) *sum = before + scanned.before;
      before += scanned.total;
    }
  }
}

// Third, and all there is for rows of one tile (before == nullptr): the sums within each tile.
template <class T>
__global__ void __launch_bounds__(kThreads)
    cumsum_kernel(const T* x, Tiles tiles, const uint64_t* before, bool exclusive, T* out) {
  __shared__ uint64_t scratch[kScanScratch];
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const Items<T> items(x, tiles, tile);
    uint64_t sum = block_scan(items.sum(), scratch).before + (before ? before[tile] : 0);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint64_t upto = sum + items.value[i];
      if (i < items.count) out[items.begin + i] = static_cast<T>(exclusive ? sum : upto);
      sum = upto;
    }
  }
}

}  // namespace

void cumsum_cuda(const Cumsum& a, cudaStream_t stream) {
  validate(a);
  const int64_t rows = a.x.rows, per_row = ceil_div(a.x.cols, kCumsumTile);
  const Tiles tiles{a.x.cols, per_row, rows * per_row};
  if (tiles.count == 0) return;
  const bool long_rows = per_row > 1;
  TROUPE_CHECK(a.workspace != nullptr || !long_rows, "workspace of", workspace_bytes(a), "bytes");
  auto* sums = long_rows ? static_cast<uint64_t*>(a.workspace) : nullptr;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles.count, 1 << 20));
  dispatch_integer(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    if (long_rows) {
      const auto row_blocks = static_cast<unsigned>(std::min<int64_t>(rows, 1 << 20));
      tile_sum_kernel<<<blocks, kThreads, 0, stream>>>(x, tiles, sums);
      TROUPE_LAUNCH_CHECK(stream);
      tile_offset_kernel<<<row_blocks, kThreads, 0, stream>>>(rows, per_row, sums);
      TROUPE_LAUNCH_CHECK(stream);
    }
    cumsum_kernel<<<blocks, kThreads, 0, stream>>>(x, tiles, sums, a.exclusive, a.out.as<T>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
