// The host's half of the launchers: tensor maps, and the launch of a persistent grid of clusters.
#pragma once

#include <algorithm>

#include "troupe/kernels/device/tensor_map.cuh"
#include "troupe/kernels/moe_sm90/pipe.cuh"

namespace troupe::sm90 {

// A matrix in boxes of `columns` (32 or 64) x 64 rows: operand A of packed rows, and what is
// stored.
inline CUtensorMap rows_map(const void* data, int64_t rows, int64_t width, int columns,
                            int box_rows = 64) {
  return tensor_map<2>(data, {{width, rows}, {width}, {columns, box_rows}});
}

// A matrix [blocks][k][n] as MN-major operand: boxes of 2 slabs of 64 n x box_k.
inline CUtensorMap slabs_map(const void* data, int64_t blocks, int64_t k, int64_t n, int box_k) {
  return tensor_map<4>(
      data, {{64, k, n / 64, blocks}, {n, 64, std::max<int64_t>(k, 1) * n}, {64, box_k, 2, 1}});
}

// Weights [E][parts][n][k] as K-major operand B: boxes of 128 n x box_k of one part.
inline CUtensorMap weight_map(const void* data, int64_t experts, int64_t parts, int64_t n,
                              int64_t k, int box_k) {
  return tensor_map<4>(data,
                       {{k, n, parts, experts}, {k, n * k, parts * n * k}, {box_k, 128, 1, 1}});
}

// How large a grid may be, and where.
struct Grid {
  int64_t tile_bound;  // of cluster tiles
  int waves;           // moe_sm90.h
  cudaStream_t stream;
};

// One block a multiprocessor and wave, in clusters of two, but no more clusters than there can be
// tiles.
template <uint32_t kSharedBytes, class... Params, class... Args>
void launch_persistent(void (*kernel)(Params...), const Grid& grid, const Args&... args) {
  TROUPE_CHECK(grid.waves >= 1, "waves", grid.waves);
  const int64_t room = int64_t{num_multiprocessors()} / 2 * grid.waves;
  const int64_t clusters = std::min(room, grid.tile_bound);
  if (clusters == 0) return;
  TROUPE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<static_cast<unsigned>(2 * clusters), kThreads, kSharedBytes, grid.stream>>>(args...);
  TROUPE_LAUNCH_CHECK(grid.stream);
}

}  // namespace troupe::sm90
