// Launches a kernel of tile_product.cuh: one argument struct, dynamic shared memory above 48 KB.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "troupe/core/device/cuda_check.h"

namespace troupe::tile {

struct LaunchShape {
  int64_t blocks;
  int threads;
  int64_t shared_bytes;
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  TROUPE_CUDA_CHECK(cudaGetDevice(&device));
  TROUPE_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

template <class Args>
void launch(void (*kernel)(Args), const LaunchShape& shape, cudaStream_t stream, const Args& args) {
  const auto bytes = static_cast<int>(shape.shared_bytes);
  TROUPE_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  TROUPE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
  TROUPE_LAUNCH_CHECK(stream);
}

// Rows that begin at multiples of 16 bytes can be copied and stored 16 bytes at a time.
inline bool rows_aligned(const void* data, int64_t ld, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld * element_bytes % 16 == 0;
}

}  // namespace troupe::tile
