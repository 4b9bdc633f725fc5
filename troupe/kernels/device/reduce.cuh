// Sums and maxima over the threads of a warp or of a block, in an order that is fixed: all threads
// get the same bits, in every run.
#pragma once

#include <cmath>

namespace troupe {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

template <class W>
__device__ __forceinline__ W warp_sum(W v) {
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
    v += __shfl_xor_sync(kWholeWarp, v, offset);
  }
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kWholeWarp, v, offset));
  }
  return v;
}

// Every thread of a block of kThreads calls it. `shared` holds a value for each warp, and may be
// used again at once.
template <int kThreads, class W>
__device__ __forceinline__ W block_sum(W v, W* shared) {
  static_assert(kThreads % kWarpLanes == 0);
  v = warp_sum(v);
  __syncthreads();  // The readers of an earlier call are done.
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = v;
  __syncthreads();
  W sum = 0;
  for (int warp = 0; warp < kThreads / kWarpLanes; ++warp) sum += shared[warp];
  return sum;
}

template <int kThreads>
__device__ __forceinline__ float block_max(float v, float* shared) {
  static_assert(kThreads % kWarpLanes == 0);
  v = warp_max(v);
  __syncthreads();
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = v;
  __syncthreads();
  float top = shared[0];
  for (int warp = 1; warp < kThreads / kWarpLanes; ++warp) top = fmaxf(top, shared[warp]);
  return top;
}

}  // namespace troupe
