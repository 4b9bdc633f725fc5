// Products over packed rows: C[r, :] = A[r, :] B_e^T for the rows r of expert e. Rows of A are
// packed (by the copy engine) or gathered through row_src (16 bytes a thread); B is a weight.
#pragma once

#include "troupe/core/device/view.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/work.cuh"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe::sm90 {

// How a column tile of B is cut out of the weight: two boxes of 128 columns, one a block.
enum class WeightBoxes {
  kRows,       // K-major; columns n are rows of the weight: [e][n][k]
  kGateAndUp,  // K-major; block 0 takes 128 gate rows, block 1 the up rows of the same units
  kSlabs,      // MN-major; [e][k][n], slabs of 64 n
};

struct RowsGemm {
  const uint8_t* gather;         // rows of A before the gather, or null
  uint32_t gather_row_bytes;     // of a row of it
  const int32_t* row_src;        // [R]
  const int32_t* expert_offset;  // [E + 1]
  int experts;
  int k;        // length of the sum, a multiple of 64
  int n_tiles;  // ceil(N / 256)
  bool tails_last;
  int stagger;  // cycles over which the first wave's starts are spread
};

// Cluster tiles there may be at most: whole ones, and a rest for each expert.
inline int64_t row_tile_bound(const PlanRef& plan, int64_t columns, int64_t tile_columns) {
  if (plan.rows == 0) return 0;
  return (plan.rows / kClusterM + plan.experts) * ceil_div(columns, tile_columns);
}

inline RowsGemm rows_gemm(const PlanRef& plan, const MatRef* gather, int64_t k, int64_t columns,
                          int64_t tile_columns) {
  const MoeSm90Plan how = choose_rows_plan(k);
  return {gather == nullptr ? nullptr : static_cast<const uint8_t*>(gather->data),
          static_cast<uint32_t>(k * 2),
          plan.row_src,
          plan.expert_offset,
          static_cast<int>(plan.experts),
          static_cast<int>(k),
          static_cast<int>(ceil_div(columns, tile_columns)),
          how.in_step,
          how.stagger_cycles};
}

template <class Spec>
struct RowsProducer {
  using G = typename Spec::G;
  static constexpr uint32_t kBoxBytes = G::kABytes / 2;  // 64 rows of A
  const RowsGemm& g;
  const CUtensorMap* a_map;
  const CUtensorMap* b_map;
  int rank;

  __device__ void load_weight(const Pipe<G>& pipe, const RowTile& tile, int step) const {
    const int k = step * G::kK;
    BoxAt at;
    if constexpr (Spec::kBoxes == WeightBoxes::kRows) {
      at = {k, tile.n * kTileN + rank * 128, 0, tile.expert};
    } else if constexpr (Spec::kBoxes == WeightBoxes::kGateAndUp) {
      at = {k, tile.n * 128, rank, tile.expert};
    } else {
      at = {0, k, tile.n * 4 + rank * 2, tile.expert};
    }
    copy_box_4d_multicast(pipe.b() + rank * (G::kBBytes / 2), b_map, at, pipe.full(), 3);
  }

  // One thread.
  __device__ void load_packed(const Pipe<G>& pipe, const RowTile& tile, int step) const {
    const int boxes = (tile.valid + 63) / 64;
    barrier_expect(pipe.full(), G::kBBytes + boxes * kBoxBytes);
    load_weight(pipe, tile, step);
    for (int i = 0; i < boxes; ++i) {
      copy_box_2d(pipe.a() + i * kBoxBytes, a_map, step * G::kK, tile.row + 64 * i, pipe.full());
    }
  }

  __device__ void run_packed(const RowWork& work, Pipe<G>& pipe, int cluster, int clusters) const {
    for (int t = cluster, total = work.total(); t < total; t += clusters) {
      const RowTile tile = work.at(t);
      for (int step = 0; step < g.k / G::kK; ++step) {
        pipe.wait_empty();
        load_packed(pipe, tile, step);
        pipe.advance();
      }
    }
  }

  // All four warps. A row has kChunks chunks of 16 bytes; thread i copies chunk i % kChunks of rows
  // i / kChunks + kRows j.
  __device__ void run_gathered(const RowWork& work, Pipe<G>& pipe, int cluster,
                               int clusters) const {
    constexpr int kChunks = G::kK / 8, kRows = kWarpgroup / kChunks, kCopies = kTileM / kRows;
    const int thread = threadIdx.x % kWarpgroup;
    const int row = thread / kChunks, chunk = thread % kChunks;
    const int swizzle = kChunks == 8 ? row & 7 : row / 2 & 3;
    const uint32_t to = row * G::kK * 2 + ((chunk ^ swizzle) << 4);
    for (int t = cluster, total = work.total(); t < total; t += clusters) {
      const RowTile tile = work.at(t);
      uint32_t from[kCopies];
      uint32_t exists = 0;  // Bit 4 + j: row j is there; 16 bytes of it are copied, else zeros.
#pragma unroll
      for (int j = 0; j < kCopies; ++j) {
        const int r = row + kRows * j;
        const int src = r < tile.valid ? __ldg(g.row_src + tile.row + r) : -1;
        exists |= uint32_t{src >= 0} << (4 + j);
        from[j] = static_cast<uint32_t>(max(src, 0));
      }
      const uint8_t* source = g.gather + chunk * 16;
      const bool upper = tile.valid > 64;
      for (int step = 0; step < g.k / G::kK; ++step) {
        pipe.wait_empty();
        if (thread == 0) {
          barrier_expect(pipe.full(), G::kBBytes);
          load_weight(pipe, tile, step);
        }
        const uint32_t dst = pipe.a() + to;
#pragma unroll
        for (int j = 0; j < kCopies; ++j) {
          if (j < kCopies / 2 || upper) {
            copy16(dst + j * 2048, source + uint64_t{from[j]} * g.gather_row_bytes,
                   exists >> j & 16);
          }
        }
        source += G::kK * 2;
        copy16_arrive(pipe.full());
        pipe.advance();
      }
    }
  }
};

// The grid is persistent: clusters of two blocks walk the tiles. Operand A is read once a column
// tile, B once per 256 rows; both mostly from L2. Bound by the tensor cores.
template <class Spec>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    rows_gemm_kernel(const __grid_constant__ RowsGemm g,
                     const __grid_constant__ typename Spec::Epilogue::Params params,
                     const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map) {
  using G = typename Spec::G;
  extern __shared__ __align__(1024) uint8_t shared[];
  Pipe<G> pipe{shared_address(shared)};
  const int group = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
  const RowWork work =
      RowWork::view(shared + G::kTablesAt, g.experts, g.n_tiles, rank, g.tails_last);

  if (threadIdx.x == 0) {
    if (pipe.base % 1024 != 0) give_up();
    pipe.init(Spec::kGather ? 1 + kWarpgroup : 1);
    prefetch_map(&b_map);
    if (!Spec::kGather) prefetch_map(&a_map);
  }
  if (group == 1 && warp == 0) work.fill(g.expert_offset, lane);
  __syncthreads();
  cluster_sync();

  if (group == 0) {
    registers_shrink<Spec::kProducerRegisters>();
    stagger_start(g.stagger, cluster, work.total());
    const RowsProducer<Spec> producer{g, &a_map, &b_map, rank};
    if constexpr (Spec::kGather) {
      producer.run_gathered(work, pipe, cluster, clusters);
    } else if (warp == 0) {
      if (lane == 0) producer.run_packed(work, pipe, cluster, clusters);
      __syncwarp();
    }
  } else {
    registers_grow<(504 - Spec::kProducerRegisters) / 16 * 8>();
    const Consumer me{pipe.staging(group - 1), pipe.epilogue_barriers(group - 1), group - 1, warp,
                      lane};
    constexpr Major kB = Spec::kBoxes == WeightBoxes::kSlabs ? Major::kMN : Major::kK;
    const Multiply<G, Major::kK, kB, Spec::kGather> multiply(pipe, me.index, lane);
    Accumulator acc = {};  // Without this its registers would be taken from the start on.
    typename Spec::Epilogue epilogue{params, me};
    const int total = work.total();
    RowTile tile = cluster < total ? work.at(cluster) : RowTile{};
    for (int t = cluster; t < total; t += clusters) {
      const int valid = min(64, tile.valid - 64 * me.index);  // of this consumer's rows
      RowTile next = tile;
      epilogue.begin(tile, tile.row + 64 * me.index, valid);
      multiply.run(acc, pipe, g.k / G::kK, valid > 0, [&] {
        epilogue.fetch();
        if (t + clusters < total) next = work.at(t + clusters);
      });
      if (valid > 0) epilogue.end(acc);
      tile = next;
    }
    if (me.leads()) store_wait_read<0>();
  }
  cluster_sync();  // A block's memory must outlive its neighbor's copies and arrivals.
}

}  // namespace troupe::sm90
