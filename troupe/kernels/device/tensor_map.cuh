// The host's half of the copy engine (TMA): maps of matrices, as its copies take them.
#pragma once

#include <cudaTypedefs.h>

#include <algorithm>
#include <array>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/tile_launch.cuh"

namespace troupe::sm90 {

// A view of memory of 16-bit numbers, which are only copied: sizes, fastest first; strides in
// elements of all but the first, whose elements are neighbors; and the box that one copy takes of
// it, whose rows are 128 or 64 bytes.
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

// Rows of the box are 128 swizzled bytes in shared memory; what is outside the view reads as
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

inline int num_multiprocessors() {
  return tile::device_attribute(cudaDevAttrMultiProcessorCount);
}

}  // namespace troupe::sm90
