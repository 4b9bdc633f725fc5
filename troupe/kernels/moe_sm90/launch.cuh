// The host's half of the launchers: tensor maps, and the launch of a persistent grid of clusters.
#pragma once

#include <cudaTypedefs.h>

#include <algorithm>
#include <array>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/moe_sm90/pipe.cuh"

namespace troupe::sm90 {

// A view of bf16 memory: sizes, fastest first; strides in elements of all but the first, whose
// elements are neighbours; and the box that one copy takes of it, whose rows are 128 or 64 bytes.
template <int kDims>
struct MapShape {
  std::array<int64_t, kDims> size;
  std::array<int64_t, kDims - 1> stride;
  std::array<int, kDims> box;
};

inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TROUPE_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &found));
  TROUPE_CHECK(found == cudaDriverEntryPointSuccess, "the driver has no tensor maps");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// Rows of the box are 128 swizzled bytes in shared memory; what lies outside the view reads as
// zero.
template <int kDims>
CUtensorMap tensor_map(const void* data, const MapShape<kDims>& shape) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
  cuuint64_t size[kDims], stride[kDims - 1];
  cuuint32_t box[kDims], step[kDims];
  for (int i = 0; i < kDims; ++i) {
    size[i] = static_cast<cuuint64_t>(std::max<int64_t>(shape.size[i], 1));
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    step[i] = 1;
  }
  for (int i = 0; i < kDims - 1; ++i) stride[i] = static_cast<cuuint64_t>(shape.stride[i] * 2);
  CUtensorMap map;
  const auto try_encode = [&] {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kDims, const_cast<void*>(data), size,
                  stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  shape.box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = try_encode();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    // The first call of a thread (autograd's, say): this makes the device's context its own.
    int device = 0;
    TROUPE_CUDA_CHECK(cudaGetDevice(&device));
    TROUPE_CUDA_CHECK(cudaSetDevice(device));
    status = try_encode();
  }
  TROUPE_CHECK(status == CUDA_SUCCESS, "tensor map refused, CUresult", static_cast<int>(status),
               "dims", kDims, "row", shape.size[0], "of", shape.size[1]);
  return map;
}

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

inline int num_multiprocessors() {
  int device = 0, count = 0;
  TROUPE_CUDA_CHECK(cudaGetDevice(&device));
  TROUPE_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
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
