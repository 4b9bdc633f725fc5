// The largest of many, by (value descending, index ascending), exactly (rule G2): a key is the
// float's bits in an order that unsigned integers have. Key 0 is below every number: taken, or not
// there.
#pragma once

#include <cstdint>

#include "troupe/kernels/device/reduce.cuh"

namespace troupe {

// A NaN as -inf, -0 as 0.
__device__ __forceinline__ uint32_t sort_key(float x) {
  const uint32_t bits = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of_key(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Key and index in one, larger where it comes first.
__device__ __forceinline__ uint64_t ranked(uint32_t key, uint32_t index) {
  return uint64_t{key} << 32 | ~index;
}
__device__ __forceinline__ uint32_t key_of(uint64_t r) {
  return static_cast<uint32_t>(r >> 32);
}
__device__ __forceinline__ int index_of(uint64_t r) {
  return static_cast<int>(~static_cast<uint32_t>(r));
}

// The largest over a warp; two reductions in hardware.
__device__ __forceinline__ uint64_t warp_max_ranked(uint64_t mine) {
  const uint32_t key = __reduce_max_sync(kWholeWarp, key_of(mine));
  const uint32_t low = key_of(mine) == key ? static_cast<uint32_t>(mine) : 0;
  return uint64_t{key} << 32 | __reduce_max_sync(kWholeWarp, low);
}

template <int kThreads>
__device__ uint64_t block_max_ranked(uint64_t mine, uint64_t* shared) {
  mine = warp_max_ranked(mine);
  __syncthreads();
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = mine;
  __syncthreads();
  uint64_t top = shared[0];
  for (int warp = 1; warp < kThreads / kWarpLanes; ++warp) top = max(top, shared[warp]);
  return top;
}

// The largest of keys[0, n) below `last`, where the thread looks at every step-th from `first`.
// Called with the previous result, it goes through the keys in order and changes none. 0: no more.
__device__ __forceinline__ uint64_t next_ranked(const uint32_t* keys, int n, uint64_t last,
                                                int first, int step) {
  uint64_t best = 0;
  for (int i = first; i < n; i += step) {
    const uint64_t next = keys[i] == 0 ? 0 : ranked(keys[i], i);
    if (next < last && next > best) best = next;
  }
  return best;
}

// A row spread over a warp in registers. Lane l has kVec neighbors at a time, so that it can load
// them in one access: expert(i) rises with i.
template <int kPerLane>
struct WarpRow {
  static constexpr int kVec = kPerLane < 4 ? kPerLane : 4;
  static __device__ __forceinline__ int expert(int i) {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    return i / kVec * (kVec * kWarpLanes) + lane * kVec + i % kVec;
  }
};

// The keys of such a row; take() removes the largest and returns its index.
template <int kPerLane>
struct WarpKeys {
  uint32_t key[kPerLane];

  __device__ __forceinline__ int take() {
    uint32_t best = 0;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (key[i] > best) {
        best = key[i];
        mine = WarpRow<kPerLane>::expert(i);
      }
    }
    const int id = index_of(warp_max_ranked(ranked(best, mine)));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (WarpRow<kPerLane>::expert(i) == id) key[i] = 0;
    }
    return id;
  }
};

}  // namespace troupe
