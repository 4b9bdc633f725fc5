// Which tile is next, from the expert offsets alone: no host knows the counts. All blocks walk the
// same list of cluster tiles (256 rows x 256 columns) with the stride of the grid.
#pragma once

#include "troupe/kernels/moe_sm90/pipe.cuh"

namespace troupe::sm90 {

__device__ inline int num_multiprocessors_here() {
  uint32_t count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return static_cast<int>(count);
}

// Blocks that run in step all store at one time and all multiply at another: spread their starts.
// Groups of 8 clusters share a column tile and start together. Later waves start as others end. Of
// few waves (`tiles` over the clusters) what the last one waited would be the launch's tail.
__device__ inline void stagger_start(int cycles, int cluster, int tiles) {
  const int clusters = min(static_cast<int>(gridDim.x), num_multiprocessors_here()) / 2;
  if (cycles == 0 || cluster >= clusters || tiles < kStaggerWavesSm90 * clusters) return;
  const int64_t wait = int64_t{cycles} * (cluster / 8 * 8) / clusters;
  const int64_t start = clock64();
  while (clock64() - start < wait) __nanosleep(200);
}

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

// The e below `experts` with prefix[e] <= i < prefix[e + 1].
template <class T>
__device__ inline int find_in(const T* prefix, int experts, int i) {
  int low = 0, high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (prefix[middle] <= i ? low : high) = middle;
  }
  return low;
}

// Tiles of a product over packed rows. First all whole ones (256 rows), expert after expert; within
// an expert groups of kGroup cluster rows, columns outside, rows inside, so that what runs at one
// time shares rows and weights in L2. Then what is left of each expert: short tiles between long
// ones would let blocks that share operands drift apart, and would load some blocks less than
// others.
struct RowWork {
  static constexpr int kGroup = 8;
  const int* offset;      // [E + 1]  shared memory
  const int* before;      // [E + 1]  whole tiles of earlier experts
  const uint16_t* tails;  // [E + 1]  earlier experts with a rest
  int experts;
  int n_tiles;
  int rank;  // of the block in its cluster
  bool tails_last;

  __device__ int total() const { return before[experts] + tails[experts] * n_tiles; }

  __device__ static RowWork view(uint8_t* tables, int experts, int n_tiles, int rank,
                                 bool tails_last) {
    const int* offset = reinterpret_cast<const int*>(tables);
    const int* before = offset + kMaxExperts + 1;
    return {offset,    before,  reinterpret_cast<const uint16_t*>(before + kMaxExperts + 1),
            experts,   n_tiles, rank,
            tails_last};
  }

  // One warp fills the tables.
  __device__ void fill(const int32_t* expert_offset, int lane) const {
    int before_carry = 0, tails_carry = 0;
    for (int first = 0; first <= experts; first += 32) {
      const int e = first + lane;
      const int begin = e <= experts ? expert_offset[e] : 0;
      const int length = e < experts ? expert_offset[e + 1] - begin : 0;
      const int whole = (tails_last ? length : length + kClusterM - 1) / kClusterM * n_tiles;
      const int tail = tails_last && length % kClusterM != 0;
      int whole_sum = whole, tail_sum = tail;
      for (int step = 1; step < 32; step *= 2) {
        const int other_whole = __shfl_up_sync(0xffffffffu, whole_sum, step);
        const int other_tail = __shfl_up_sync(0xffffffffu, tail_sum, step);
        if (lane >= step) whole_sum += other_whole, tail_sum += other_tail;
      }
      if (e <= experts) {
        const_cast<int*>(offset)[e] = begin;
        const_cast<int*>(before)[e] = before_carry + whole_sum - whole;
        const_cast<uint16_t*>(tails)[e] = static_cast<uint16_t>(tails_carry + tail_sum - tail);
      }
      before_carry += __shfl_sync(0xffffffffu, whole_sum, 31);
      tails_carry += __shfl_sync(0xffffffffu, tail_sum, 31);
    }
  }

  __device__ RowTile at(int t) const {
    const int whole_tiles = before[experts];
    return t < whole_tiles ? whole(t) : tail(t - whole_tiles);
  }

  __device__ RowTile whole(int t) const {
    const int e = find_in(before, experts, t);
    const int begin = offset[e], end = offset[e + 1];
    const int pairs = (end - begin + (tails_last ? 0 : kClusterM - 1)) / kClusterM;
    const int i = t - before[e];
    const int group = i / (kGroup * n_tiles);
    const int in_group = i - group * kGroup * n_tiles;
    const int height = min(kGroup, pairs - group * kGroup);
    const int n = in_group / height;
    const int first = begin + (group * kGroup + in_group - n * height) * kClusterM;
    return share(e, first, min(end - first, kClusterM), n);
  }

  // Up to 128 rows are split over both blocks.
  __device__ RowTile share(int e, int first, int left, int n) const {
    const int mine = left <= kTileM ? kTileM / 2 : kTileM;
    return {e, first + rank * mine, max(0, min(left - rank * mine, mine)), n};
  }

  __device__ RowTile tail(int i) const {
    const int j = i / n_tiles;
    const int e = find_in(tails, experts, j);
    const int end = offset[e + 1], left = (end - offset[e]) % kClusterM;
    return share(e, end - left, left, i - j * n_tiles);
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
