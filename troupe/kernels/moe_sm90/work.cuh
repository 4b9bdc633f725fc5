// Which tile is next, from the expert offsets alone: no host knows the counts. All blocks walk the
// same list of cluster tiles (256 rows x 256 columns) with the stride of the grid.
#pragma once

#include "troupe/kernels/moe_sm90/pipe.cuh"

namespace troupe::sm90 {

// One block's share of a cluster tile over packed rows.
struct RowTile {
  int expert;
  int row;    // first packed row
  int valid;  // rows that exist, 0..128
  int n;      // column tile

  // What is left for 16 rows of warp `warp` (0..3) of consumer `warpgroup`; may be negative.
  __device__ int warp_valid(int warpgroup, int warp) const {
    return valid - 64 * warpgroup - 16 * warp;
  }
  __device__ int warp_row(int warpgroup, int warp) const {
    return row + 64 * warpgroup + 16 * warp;
  }
};

// Tiles of a product over packed rows: expert after expert; within one, groups of kGroup cluster
// rows, columns outside, rows inside, so that what runs at one time shares rows and weights in L2.
struct RowWork {
  static constexpr int kGroup = 16;
  const int* offset;  // [E + 1]  shared memory
  const int* before;  // [E + 1]  shared memory: tiles of earlier experts
  int experts;
  int n_tiles;
  int rank;  // of the block in its cluster

  __device__ int total() const { return before[experts]; }

  // One warp fills the tables.
  __device__ static void fill(uint8_t* tables, const int32_t* expert_offset, int experts,
                              int n_tiles, int lane) {
    int* offset = reinterpret_cast<int*>(tables);
    int* before = offset + kMaxExperts + 1;
    int carry = 0;
    for (int first = 0; first <= experts; first += 32) {
      const int e = first + lane;
      const int begin = e <= experts ? expert_offset[e] : 0;
      const int end = e < experts ? expert_offset[e + 1] : begin;
      const int tiles = (end - begin + kClusterM - 1) / kClusterM * n_tiles;
      int sum = tiles;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
      }
      if (e <= experts) {
        offset[e] = begin;
        before[e] = carry + sum - tiles;
      }
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
  }

  __device__ static RowWork view(const uint8_t* tables, int experts, int n_tiles, int rank) {
    const int* offset = reinterpret_cast<const int*>(tables);
    return {offset, offset + kMaxExperts + 1, experts, n_tiles, rank};
  }

  __device__ int expert_of(int t) const {
    int low = 0, high = experts;  // before[low] <= t < before[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (before[middle] <= t ? low : high) = middle;
    }
    return low;
  }

  __device__ RowTile at(int t) const {
    const int e = expert_of(t);
    const int begin = offset[e], end = offset[e + 1];
    const int pairs = (end - begin + kClusterM - 1) / kClusterM;
    const int i = t - before[e];
    const int group = i / (kGroup * n_tiles);
    const int in_group = i - group * kGroup * n_tiles;
    const int height = min(kGroup, pairs - group * kGroup);
    const int n = in_group / height;
    const int first = begin + (group * kGroup + in_group - n * height) * kClusterM;
    const int left = min(end - first, kClusterM);
    const int share = left <= kTileM ? kTileM / 2 : kTileM;  // A short tile is split over both.
    return {e, first + rank * share, max(0, min(left - rank * share, share)), n};
  }
};

// One block's share of a tile of an expert's weight gradient.
struct WeightTile {
  int expert;
  int m;      // first row of the tile
  int n;      // first column
  int row;    // first packed row of the expert
  int count;  // its rows: the length of the sum
};

// Tiles of a weight gradient: every expert has the same number. Rows of tiles inside, so that what
// runs at one time shares the operand that is not gathered.
struct WeightWork {
  const int32_t* expert_offset;
  int experts;
  int m_pairs;
  int n_tiles;
  int rank;

  __device__ int total() const { return experts * m_pairs * n_tiles; }

  __device__ WeightTile at(int t) const {
    const int per_expert = m_pairs * n_tiles;
    const int e = t / per_expert;
    const int i = t - e * per_expert;
    const int n = i / m_pairs;
    const int begin = __ldg(expert_offset + e);
    return {e, ((i - n * m_pairs) * 2 + rank) * kTileM, n * kTileN, begin,
            __ldg(expert_offset + e + 1) - begin};
  }
};

}  // namespace troupe::sm90
