// A weight gradient's sum over the rows of an expert, cut into segments: where an expert has few
// tiles, and many rows, segments are what keeps all multiprocessors busy. Each leaves its partial
// sums in device memory; which segment of a tile arrives last adds them, in their order, and stores
// the tile. So bits depend neither on who was last nor on the other experts.
#pragma once

#include "troupe/kernels/moe_sm90/work.cuh"

namespace troupe::sm90 {

constexpr int kPartialFloats = 64 * kTileN;  // of a consumer warpgroup

struct Segments {
  int rows;        // of a segment, a multiple of the ring's depth
  int* arrived;    // [slots][tiles][2 blocks][2 consumers], zeros at the start
  float* partial;  // the same, kPartialFloats each
};

struct SegmentTile : WeightTile {  // `row` and `count` are the segment's
  int segment, segments;           // which of how many of its expert
  int slot;                        // of the expert's first segment among the partial sums
  int tile;                        // of the expert's gradient
};

// Tiles of all experts' segments; those of one segment together, so that what runs at one time
// shares rows in L2. An expert without rows has one empty segment. Slots are given to experts with
// two segments or more.
struct SegmentWork {
  const int* before;  // [E + 1]  segments of earlier experts, in shared memory
  const int* slots;   // [E + 1]  those of them that have slots
  const int32_t* expert_offset;
  int experts;
  int m_pairs, n_tiles;
  int segment_rows;
  int rank;

  __device__ int total() const { return before[experts] * m_pairs * n_tiles; }

  // One warp fills the tables.
  __device__ void fill(int lane) const {
    int before_carry = 0, slots_carry = 0;
    for (int first = 0; first <= experts; first += 32) {
      const int e = first + lane;
      const int length = e < experts ? expert_offset[e + 1] - expert_offset[e] : 0;
      const int mine = e < experts ? max(1, (length + segment_rows - 1) / segment_rows) : 0;
      const int held = mine > 1 ? mine : 0;
      int sum = mine, held_sum = held;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        const int other_held = __shfl_up_sync(0xffffffffu, held_sum, step);
        if (lane >= step) sum += other, held_sum += other_held;
      }
      if (e <= experts) {
        const_cast<int*>(before)[e] = before_carry + sum - mine;
        const_cast<int*>(slots)[e] = slots_carry + held_sum - held;
      }
      before_carry += __shfl_sync(0xffffffffu, sum, 31);
      slots_carry += __shfl_sync(0xffffffffu, held_sum, 31);
    }
  }

  __device__ SegmentTile at(int t) const {
    const int per_segment = m_pairs * n_tiles;
    const int i = t / per_segment, tile = t - i * per_segment;
    const int e = find_in(before, experts, i);
    const int n = tile / m_pairs, segment = i - before[e];
    const int begin = __ldg(expert_offset + e), length = __ldg(expert_offset + e + 1) - begin;
    const int first = segment * segment_rows;
    return {{e, ((tile - n * m_pairs) * 2 + rank) * kTileM, n * kTileN, begin + first,
             min(segment_rows, length - first)},
            segment,
            before[e + 1] - before[e],
            slots[e],
            tile};
  }
};

// By all threads of a consumer warpgroup: true where acc holds the whole sum of its half of the
// tile. False: another segment of the tile will add this one's, which it has left in memory.
__device__ inline bool add_segments(Accumulator& acc, const Segments& to, const SegmentWork& work,
                                    const SegmentTile& tile, const Consumer& me) {
  if (tile.segments == 1) return true;
  const int tiles = work.m_pairs * work.n_tiles;
  const auto place = [&](int segment) {
    return ((int64_t{tile.slot + segment} * tiles + tile.tile) * 2 + work.rank) * kConsumers +
           me.index;
  };
  const int thread = 32 * me.warp + me.lane;
  const auto sums = [&](int segment) {  // a thread's 16 bytes are beside its neighbors'
    return reinterpret_cast<float4*>(to.partial + place(segment) * kPartialFloats) + thread;
  };
  float4* const mine = sums(tile.segment);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    mine[i * kWarpgroup] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
  }
  __threadfence();
  me.sync();
  bool last = false;
  if (me.leads()) last = atomicAdd(to.arrived + place(0), 1) == tile.segments - 1;
  if (!me.any(last)) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < 128; ++i) acc[i] = 0;
  for (int segment = 0; segment < tile.segments; ++segment) {
    const float4* const from = sums(segment);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float4 v = __ldcg(from + i * kWarpgroup);
      acc[4 * i] += v.x, acc[4 * i + 1] += v.y, acc[4 * i + 2] += v.z, acc[4 * i + 3] += v.w;
    }
  }
  return true;
}

}  // namespace troupe::sm90
