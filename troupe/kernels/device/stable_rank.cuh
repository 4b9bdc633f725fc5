// Stable counting, the step that routing plans and radix sorts share: for each item of a sequence,
// how many items with its key come before it. A block owns a chunk of the sequence and takes it
// tile by tile; keys are in [0, num_keys), num_keys <= kRankThreads; an item with key -1 is passed
// over.
#pragma once

#include <cstdint>

#include "troupe/kernels/device/reduce.cuh"

namespace troupe {

inline constexpr int kRankThreads = 1024;
inline constexpr int kRankWarps = kRankThreads / kWarpLanes;
inline constexpr int kRankItems = 2;  // of a thread, in a tile
inline constexpr int kRankTile = kRankThreads * kRankItems;

// How many lanes below this one hold the same key, and how many lanes hold it.
struct Peers {
  int before;
  int count;
};

__device__ inline Peers peers_of(int key) {
  const unsigned same = __match_any_sync(kWholeWarp, key);
  const unsigned below = (1u << (threadIdx.x % kWarpLanes)) - 1;
  return {__popc(same & below), __popc(same)};
}

// Where the item of this thread's i-th place is in its tile: a warp's items are neighbors.
__device__ inline int rank_position(int i) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  return (warp * kRankItems + i) * kWarpLanes + lane;
}

struct RankShared {
  __device__ RankShared(int32_t* memory, int keys)
      : num_keys(keys),
        total(memory),
        next(total + keys),
        warp_count(reinterpret_cast<uint16_t*>(next + keys)) {}
  // Bytes of shared memory, a multiple of four.
  static int64_t bytes(int64_t keys) { return keys * int64_t{8 + 2 * kRankWarps}; }

  int num_keys;
  int32_t* total;        // [keys]  items with the key, in all chunks
  int32_t* next;         // [keys]  the rank of this chunk's next item with the key
  uint16_t* warp_count;  // [warps, keys]
};

// total and next, from the chunks' histograms [gridDim.x, keys]. Every block reads all of them,
// from L2 (64 KB for 128 keys and chunks): cheaper than a launch of its own for the prefix.
__device__ inline void sum_histograms(const RankShared& s, const int32_t* histograms) {
  const int key = static_cast<int>(threadIdx.x) % s.num_keys;
  const int part = static_cast<int>(threadIdx.x) / s.num_keys, parts = kRankThreads / s.num_keys;
  for (int i = threadIdx.x; i < 2 * s.num_keys; i += kRankThreads) s.total[i] = 0;  // And next.
  __syncthreads();
  if (part < parts) {
    int all = 0, before = 0;
#pragma unroll 8
    for (int c = part; c < static_cast<int>(gridDim.x); c += parts) {
      const int here = __ldg(&histograms[c * s.num_keys + key]);
      all += here;
      before += c < static_cast<int>(blockIdx.x) ? here : 0;
    }
    atomicAdd(&s.total[key], all);  // Integer, hence the same in any order.
    atomicAdd(&s.next[key], before);
  }
  __syncthreads();
}

// rank[i] = how many items with key[i] come before item i: in earlier chunks, in earlier tiles of
// this one, in this tile. By match within a warp, by a prefix for each key over the warps. All
// threads call it, tile after tile.
__device__ inline void rank_tile(const RankShared& s, const int (&key)[kRankItems],
                                 int (&rank)[kRankItems]) {
  auto* words = reinterpret_cast<uint32_t*>(s.warp_count);
  for (int i = threadIdx.x; i < kRankWarps / 2 * s.num_keys; i += kRankThreads) words[i] = 0;
  __syncthreads();

  uint16_t* mine = s.warp_count + static_cast<int>(threadIdx.x) / kWarpLanes * s.num_keys;
#pragma unroll
  for (int i = 0; i < kRankItems; ++i) {
    const Peers peers = peers_of(key[i]);
    const int start = key[i] >= 0 ? mine[key[i]] : 0;
    __syncwarp();
    if (key[i] >= 0 && peers.before == 0) {
      mine[key[i]] = static_cast<uint16_t>(start + peers.count);
    }
    __syncwarp();
    rank[i] = start + peers.before;
  }
  __syncthreads();

  int in_tile = 0;  // count of key threadIdx.x
  const bool owns_key = static_cast<int>(threadIdx.x) < s.num_keys;
  for (int w = 0; owns_key && w < kRankWarps; ++w) {
    uint16_t* count = &s.warp_count[w * s.num_keys + static_cast<int>(threadIdx.x)];
    const int here = *count;
    *count = static_cast<uint16_t>(in_tile);
    in_tile += here;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRankItems; ++i) {
    if (key[i] >= 0) rank[i] += s.next[key[i]] + mine[key[i]];
  }
  __syncthreads();
  if (owns_key) s.next[threadIdx.x] += in_tile;
}

}  // namespace troupe
