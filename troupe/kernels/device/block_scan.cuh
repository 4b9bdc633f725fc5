// Prefix sums over the threads of a block, of integers: exact, hence the same in any order.
#pragma once

#include "troupe/kernels/device/reduce.cuh"

namespace troupe {

inline constexpr int kScanScratch = 33;  // elements of shared memory that block_scan needs

template <class T>
struct Scanned {
  T before;  // sum over the threads below this one
  T total;   // sum over the block
};

template <class T>
__device__ T warp_scan(T sum) {  // inclusive
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(kWholeWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  return sum;
}

// Called by all threads of a block of whole warps, 1024 threads at most. Orders shared memory as
// __syncthreads does, and `scratch` may be used again when it returns.
template <class T>
__device__ Scanned<T> block_scan(T mine, T* scratch) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  const T sum = warp_scan(mine);
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const T own = lane < warps ? scratch[lane] : T{0};
    const T upto = warp_scan(own);
    scratch[lane] = upto - own;
    if (lane == 31) scratch[32] = upto;
  }
  __syncthreads();
  const Scanned<T> out{scratch[warp] + sum - mine, scratch[32]};
  __syncthreads();
  return out;
}

}  // namespace troupe
