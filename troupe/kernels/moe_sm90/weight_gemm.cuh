// Gradients of the experts' weights: C_e[m, n] = sum over the rows r of expert e of
// A[row_src[r], m] B[r, n]. A is gathered, 16 bytes a thread, or packed as well; what is packed
// comes by the copy engine, except for the last, partial 64 rows of an expert, where both come by
// threads: they alone can put zeros in place of the next expert's rows.
#pragma once

#include "troupe/kernels/moe_sm90/weight_segments.cuh"

namespace troupe::sm90 {

struct WeightGemm {
  const uint8_t* gather;   // A's rows before the gather, [T, columns_m]
  const uint8_t* packed;   // B, [R, columns_n]
  const int32_t* row_src;  // or null: A is packed
  const int32_t* expert_offset;
  int experts;
  int columns_m, columns_n;  // multiples of 64
  int m_pairs, n_tiles;      // ceil(columns_m / 256), ceil(columns_n / 256)
  int stagger;               // cycles over which the first wave's starts are spread
  bool boxes_of_a = false;   // A is packed and comes by the copy engine too
  Segments segments = {};    // of kernels that cut sums
};

template <class G>
struct WeightProducer {
  static constexpr uint32_t kSlabBytes = G::kK * 128;
  static constexpr int kWarpRows = G::kK / 4;          // of a step, a warp's
  static constexpr int kSourceSteps = 32 / kWarpRows;  // A lane holds one row's source of so many.
  const WeightGemm& g;
  const CUtensorMap* a_map;
  const CUtensorMap* b_map;
  int rank, warp, lane;

  // Lane i holds the source of row i % kWarpRows of this warp's rows of step `first` +
  // i / kWarpRows; -1 past the expert's end.
  __device__ int sources(const WeightTile& tile, int first) const {
    const int r = (first + lane / kWarpRows) * G::kK + warp * kWarpRows + lane % kWarpRows;
    if (r >= tile.count) return -1;
    return g.row_src == nullptr ? tile.row + r : __ldg(g.row_src + tile.row + r);
  }

  // kK rows x 128 columns of A: a warp copies its rows two at a time, 16 chunks a row.
  __device__ void gather_a(const Pipe<G>& pipe, const WeightTile& tile, int src, int step) const {
    const int half = lane / 16, chunk = lane % 16;
    const int column = tile.m + 8 * chunk;
    const uint32_t bytes = column < g.columns_m ? 16 : 0;
    const uint8_t* base = g.gather + (bytes ? column : 0) * 2;
    const auto row_bytes = static_cast<uint32_t>(g.columns_m) * 2;
    const uint32_t dst = pipe.a() + chunk / 8 * kSlabBytes + (warp * kWarpRows + half) * 128;
    const uint32_t swizzle = (chunk ^ half) & 7;
    const int first = step % kSourceSteps * kWarpRows + half;
#pragma unroll
    for (int i = 0; i < kWarpRows / 2; ++i) {
      const int row = __shfl_sync(0xffffffffu, src, first + 2 * i);
      const uint64_t at = uint64_t{static_cast<uint32_t>(max(row, 0))} * row_bytes;
      copy16(dst + i * 256 + ((swizzle ^ (2 * i & 7)) << 4), base + at, row >= 0 ? bytes : 0);
    }
  }

  // The same for kK rows x 256 columns of B, zeros from row `left` on. A row is a warp's 32 chunks.
  __device__ void copy_b(const Pipe<G>& pipe, const WeightTile& tile, int step, int left) const {
    const int column = tile.n + 8 * lane;
    const bool exists = column < g.columns_n;
    const int64_t row_bytes = int64_t{g.columns_n} * 2;
    const uint8_t* base =
        g.packed + (tile.row + step * G::kK) * row_bytes + (exists ? column : 0) * 2;
    const uint32_t dst = pipe.b() + lane / 8 * kSlabBytes;
#pragma unroll 2
    for (int row = warp; row < G::kK; row += 4) {
      const bool copied = row < left && exists;
      copy16(dst + row * 128 + (((lane ^ row) & 7) << 4), base + (copied ? row : 0) * row_bytes,
             copied ? 16 : 0);
    }
  }

  __device__ void load_a(const Pipe<G>& pipe, const WeightTile& tile, int step) const {
    copy_box_4d(pipe.a(), a_map, {0, tile.row + step * G::kK, tile.m / 64, 0}, pipe.full());
  }
  __device__ void load_b(const Pipe<G>& pipe, const WeightTile& tile, int step) const {
    barrier_expect(pipe.full(), G::kBBytes + (g.boxes_of_a ? G::kABytes : 0));
    if (g.boxes_of_a) load_a(pipe, tile, step);
    copy_box_4d_multicast(pipe.b() + rank * (G::kBBytes / 2), b_map,
                          {0, tile.row + step * G::kK, tile.n / 64 + rank * 2, 0}, pipe.full(), 3);
  }

  template <class Work>
  __device__ void run(const Work& work, Pipe<G>& pipe, int cluster, int clusters) const {
    const bool issues = warp == 0 && lane == 0;
    for (int t = cluster; t < work.total(); t += clusters) {
      const auto tile = work.at(t);
      const int steps = (tile.count + G::kK - 1) / G::kK;
      int src = sources(tile, 0), next_src = -1;
      for (int step = 0; step < steps; ++step) {
        const int in_group = step % kSourceSteps;
        if (in_group == 0) next_src = sources(tile, step + kSourceSteps);
        const int left = tile.count - step * G::kK;
        pipe.wait_empty();
        __syncwarp();
        if (left < G::kK) {
          copy_b(pipe, tile, step, left);
          if (issues) barrier_arrive(pipe.full());
        } else if (issues) {
          load_b(pipe, tile, step);
        }
        __syncwarp();
        if (left < G::kK || !g.boxes_of_a) gather_a(pipe, tile, src, step);
        copy16_arrive(pipe.full());
        pipe.advance();
        if (in_group == kSourceSteps - 1) src = next_src;
      }
    }
  }
};

// The tiles of sums that are cut or not; tables for the former are in shared memory.
template <bool kSegments>
__device__ auto weight_work(const WeightGemm& g, uint8_t* tables, int rank) {
  if constexpr (kSegments) {
    int* const before = reinterpret_cast<int*>(tables);
    return SegmentWork{before,          before + kMaxExperts + 1,
                       g.expert_offset, g.experts,
                       g.m_pairs,       g.n_tiles,
                       g.segments.rows, rank};
  } else {
    return WeightWork{g.expert_offset, g.experts, g.m_pairs, g.n_tiles, rank};
  }
}

// As rows_gemm_kernel; the sum runs over an expert's rows, so the steps differ from tile to tile.
template <class Spec>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    weight_gemm_kernel(const __grid_constant__ WeightGemm g,
                       const __grid_constant__ typename Spec::Epilogue::Params params,
                       const __grid_constant__ CUtensorMap a_map,
                       const __grid_constant__ CUtensorMap b_map) {
  using G = typename Spec::G;
  extern __shared__ __align__(1024) uint8_t shared[];
  Pipe<G> pipe{shared_address(shared)};
  const int group = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
  const auto work = weight_work<Spec::kSegments>(g, shared + G::kTablesAt, rank);

  if (threadIdx.x == 0) {
    if (pipe.base % 1024 != 0) give_up();
    pipe.init(1 + kWarpgroup);
    prefetch_map(&b_map);
  }
  if constexpr (Spec::kSegments) {
    if (group == 1 && warp == 0) work.fill(lane);
  }
  __syncthreads();
  cluster_sync();

  if (group == 0) {
    registers_shrink<56>();
    stagger_start(g.stagger, cluster, work.total());
    WeightProducer<G>{g, &a_map, &b_map, rank, warp, lane}.run(work, pipe, cluster, clusters);
  } else {
    registers_grow<224>();
    const Consumer me{pipe.staging(group - 1), pipe.epilogue_barriers(group - 1), group - 1, warp,
                      lane};
    const Multiply<G, Major::kMN, Major::kMN, /*kThreadsCopy=*/true> multiply(pipe, me.index, lane);
    Accumulator acc = {};  // Without this its registers would be taken from the start on.
    typename Spec::Epilogue epilogue{params, me};
    const int total = work.total();
    using Tile = decltype(work.at(0));
    Tile tile = cluster < total ? work.at(cluster) : Tile{};
    for (int t = cluster; t < total; t += clusters) {
      const int m = tile.m + 64 * me.index;
      if (tile.count == 0) {
#pragma unroll
        for (int i = 0; i < 128; ++i) acc[i] = 0;
      }
      Tile next = tile;
      multiply.run(acc, pipe, (tile.count + G::kK - 1) / G::kK, tile.count > 0 && m < g.columns_m,
                   [&] {
                     if (t + clusters < total) next = work.at(t + clusters);
                   });
      bool whole = m < g.columns_m;
      if constexpr (Spec::kSegments) {
        whole = whole && add_segments(acc, g.segments, work, tile, me);
      }
      if (whole) epilogue.end(acc, tile.expert, m, tile.n, tile.count == 0);
      tile = next;
    }
    if (me.leads()) store_wait_read<0>();
  }
  cluster_sync();
}

}  // namespace troupe::sm90
