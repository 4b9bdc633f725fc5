// Products over packed rows: C[r, :] = A[r, :] B_e^T for the rows r of expert e. Rows of A are
// packed (by the copy engine) or gathered through row_src (16 bytes a thread); B is a weight.
#pragma once

#include "troupe/kernels/moe_sm90/work.cuh"

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
  int steps;    // K / 64
  int n_tiles;  // ceil(N / 256)
};

template <class Spec>
struct RowsProducer {
  const RowsGemm& g;
  const CUtensorMap* a_map;
  const CUtensorMap* b_map;
  int rank;

  __device__ void load_weight(const Pipe& pipe, const RowTile& tile, int step) const {
    const int k = step * kTileK;
    BoxAt at;
    if constexpr (Spec::kBoxes == WeightBoxes::kRows) {
      at = {k, tile.n * kTileN + rank * 128, 0, tile.expert};
    } else if constexpr (Spec::kBoxes == WeightBoxes::kGateAndUp) {
      at = {k, tile.n * 128, rank, tile.expert};
    } else {
      at = {0, k, tile.n * 4 + rank * 2, tile.expert};
    }
    copy_box_4d_multicast(pipe.b() + rank * (kBBytes / 2), b_map, at, pipe.full(), 3);
  }

  // One thread.
  __device__ void load_packed(const Pipe& pipe, const RowTile& tile, int step) const {
    const int boxes = (tile.valid + 63) / 64;
    barrier_expect(pipe.full(), kBBytes + boxes * kSlabBytes);
    load_weight(pipe, tile, step);
    for (int i = 0; i < boxes; ++i) {
      copy_box_2d(pipe.a() + i * kSlabBytes, a_map, step * kTileK, tile.row + 64 * i, pipe.full());
    }
  }

  __device__ void run_packed(const RowWork& work, Pipe& pipe, int cluster, int clusters) const {
    for (int t = cluster, total = work.total(); t < total; t += clusters) {
      const RowTile tile = work.at(t);
      for (int step = 0; step < g.steps; ++step) {
        pipe.wait_empty();
        load_packed(pipe, tile, step);
        pipe.advance();
      }
    }
  }

  // All four warps. Thread i copies 16 bytes at column 8 (i % 8) of rows i / 8 + 16 j.
  __device__ void run_gathered(const RowWork& work, Pipe& pipe, int cluster, int clusters) const {
    const int thread = threadIdx.x % kWarpgroup;
    const int row = thread / 8, chunk = thread % 8;
    const uint32_t to = row * 128 + ((chunk ^ (row & 7)) << 4);
    for (int t = cluster, total = work.total(); t < total; t += clusters) {
      const RowTile tile = work.at(t);
      uint32_t from[8];
      uint32_t exists = 0;  // Bit 4 + j: row j is there; 16 bytes of it are copied, else zeros.
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int r = row + 16 * j;
        const int src = r < tile.valid ? __ldg(g.row_src + tile.row + r) : -1;
        exists |= uint32_t{src >= 0} << (4 + j);
        from[j] = static_cast<uint32_t>(max(src, 0));
      }
      const uint8_t* source = g.gather + chunk * 16;
      const bool upper = tile.valid > 64;
      for (int step = 0; step < g.steps; ++step) {
        pipe.wait_empty();
        if (thread == 0) {
          barrier_expect(pipe.full(), kBBytes);
          load_weight(pipe, tile, step);
        }
        const uint32_t dst = pipe.a() + to;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (j < 4 || upper) {
            copy16(dst + j * 2048, source + uint64_t{from[j]} * g.gather_row_bytes,
                   exists >> j & 16);
          }
        }
        source += 128;
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
  extern __shared__ uint8_t raw[];
  uint8_t* shared = raw + (1024 - (shared_address(raw) & 1023)) % 1024;
  Pipe pipe{shared_address(shared)};
  const int group = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2;

  if (threadIdx.x == 0) {
    pipe.init(Spec::kGather ? 1 + kWarpgroup : 1);
    prefetch_map(&b_map);
    if (!Spec::kGather) prefetch_map(&a_map);
  }
  if (group == 1 && warp == 0) {
    RowWork::fill(shared + kTablesAt, g.expert_offset, g.experts, g.n_tiles, lane);
  }
  __syncthreads();
  cluster_sync();
  const RowWork work = RowWork::view(shared + kTablesAt, g.experts, g.n_tiles, rank);

  if (group == 0) {
    registers_shrink<Spec::kProducerRegisters>();
    const RowsProducer<Spec> producer{g, &a_map, &b_map, rank};
    if constexpr (Spec::kGather) {
      producer.run_gathered(work, pipe, cluster, clusters);
    } else if (warp == 0) {
      if (lane == 0) producer.run_packed(work, pipe, cluster, clusters);
      __syncwarp();
    }
  } else {
    registers_grow<(504 - Spec::kProducerRegisters) / 16 * 8>();
    const int consumer = group - 1;
    const uint32_t staging = pipe.base + kStagingAt + (consumer * 4 + warp) * kStagingBytes;
    Multiply multiply{consumer, lane};
    Accumulator acc = {};  // Without this its registers would be taken from the start on.
    typename Spec::Epilogue epilogue{params, staging, lane};
    for (int t = cluster, total = work.total(); t < total; t += clusters) {
      const RowTile tile = work.at(t);
      const int valid = tile.warp_valid(consumer, warp);
      epilogue.begin(tile, tile.warp_row(consumer, warp), valid);
      multiply.run<Major::kK, Spec::kBoxes == WeightBoxes::kSlabs ? Major::kMN : Major::kK,
                   Spec::kGather, Spec::kLead>(acc, pipe, g.steps,
                                               tile.warp_valid(consumer, 0) > 0);
      if (valid > 0) epilogue.end(acc);
    }
  }
  cluster_sync();  // A block's memory must outlive its neighbour's copies and arrivals.
}

}  // namespace troupe::sm90
