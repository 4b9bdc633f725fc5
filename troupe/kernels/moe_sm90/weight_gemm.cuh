// Gradients of the experts' weights: C_e[m, n] = sum over the rows r of expert e of
// A[row_src[r], m] B[r, n]. A is gathered, 16 bytes a thread; B is packed and comes by the copy
// engine, but for the last, partial 64 rows of an expert, where both come by threads: they alone
// can put zeros in place of the next expert's rows.
#pragma once

#include "troupe/kernels/moe_sm90/work.cuh"

namespace troupe::sm90 {

struct WeightGemm {
  const uint8_t* gather;  // A's rows before the gather, [T, columns_m]
  const uint8_t* packed;  // B, [R, columns_n]
  const int32_t* row_src;
  const int32_t* expert_offset;
  int experts;
  int columns_m, columns_n;  // multiples of 64
  int m_pairs, n_tiles;      // ceil(columns_m / 256), ceil(columns_n / 256)
};

struct WeightProducer {
  const WeightGemm& g;
  const CUtensorMap* b_map;
  int rank, warp, lane;

  // The source of row `lane % 16` of this warp's 16 rows of a step; -1 past the expert's end.
  __device__ int source(const WeightTile& tile, int step) const {
    const int r = step * kTileK + 16 * warp + lane % 16;
    return r < tile.count ? __ldg(g.row_src + tile.row + r) : -1;
  }

  // 64 rows x 128 columns of A: a warp copies 16 rows, two at a time, 16 chunks a row.
  __device__ void gather_a(const Pipe& pipe, const WeightTile& tile, int src) const {
    const int half = lane / 16, chunk = lane % 16;
    const int column = tile.m + 8 * chunk;
    const bool exists = column < g.columns_m;
    const int64_t row_bytes = int64_t{g.columns_m} * 2;
    const uint8_t* base = g.gather + (exists ? column : 0) * 2;
    const uint32_t dst = pipe.a() + chunk / 8 * kSlabBytes + warp * 2048 + half * 128;
    const uint32_t swizzle = (chunk ^ half) & 7;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = __shfl_sync(0xffffffffu, src, 2 * i + half);
      copy16(dst + i * 256 + ((swizzle ^ (2 * i & 7)) << 4), base + max(row, 0) * row_bytes,
             row >= 0 && exists ? 16 : 0);
    }
  }

  // The same for 64 rows x 256 columns of B, zeros from row `left` on. A row is a warp's 32 chunks.
  __device__ void copy_b(const Pipe& pipe, const WeightTile& tile, int step, int left) const {
    const int column = tile.n + 8 * lane;
    const bool exists = column < g.columns_n;
    const int64_t row_bytes = int64_t{g.columns_n} * 2;
    const uint8_t* base =
        g.packed + (tile.row + step * kTileK) * row_bytes + (exists ? column : 0) * 2;
    const uint32_t dst = pipe.b() + lane / 8 * kSlabBytes;
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const int row = warp + 4 * i;
      const bool copied = row < left && exists;
      copy16(dst + row * 128 + (((lane ^ row) & 7) << 4), base + (copied ? row : 0) * row_bytes,
             copied ? 16 : 0);
    }
  }

  __device__ void load_b(const Pipe& pipe, const WeightTile& tile, int step) const {
    barrier_expect(pipe.full(), kBBytes);
    copy_box_4d_multicast(pipe.b() + rank * (kBBytes / 2), b_map,
                          {0, tile.row + step * kTileK, tile.n / 64 + rank * 2, 0}, pipe.full(), 3);
  }

  __device__ void run(const WeightWork& work, Pipe& pipe, int cluster, int clusters) const {
    const bool issues = warp == 0 && lane == 0;
    for (int t = cluster; t < work.total(); t += clusters) {
      const WeightTile tile = work.at(t);
      const int steps = (tile.count + kTileK - 1) / kTileK;
      int src = source(tile, 0);
      for (int step = 0; step < steps; ++step) {
        const int next_src = source(tile, step + 1);
        const int left = tile.count - step * kTileK;
        pipe.wait_empty();
        __syncwarp();
        if (left < kTileK) {
          copy_b(pipe, tile, step, left);
          if (issues) barrier_arrive(pipe.full());
        } else if (issues) {
          load_b(pipe, tile, step);
        }
        __syncwarp();
        gather_a(pipe, tile, src);
        copy16_arrive(pipe.full());
        pipe.advance();
        src = next_src;
      }
    }
  }
};

// As rows_gemm_kernel; the sum runs over an expert's rows, so the steps differ from tile to tile.
template <class Epilogue>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    weight_gemm_kernel(const __grid_constant__ WeightGemm g,
                       const __grid_constant__ typename Epilogue::Params params,
                       const __grid_constant__ CUtensorMap b_map) {
  extern __shared__ uint8_t raw[];
  Pipe pipe{shared_address(raw) + (1024 - (shared_address(raw) & 1023)) % 1024};
  const int group = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
  const WeightWork work{g.expert_offset, g.experts, g.m_pairs, g.n_tiles, rank};

  if (threadIdx.x == 0) {
    pipe.init(1 + kWarpgroup);
    prefetch_map(&b_map);
  }
  __syncthreads();
  cluster_sync();

  if (group == 0) {
    registers_shrink<56>();
    WeightProducer{g, &b_map, rank, warp, lane}.run(work, pipe, cluster, clusters);
  } else {
    registers_grow<224>();
    const int consumer = group - 1;
    Multiply multiply{consumer, lane};
    Accumulator acc = {};  // Without this its registers would be taken from the start on.
    const Epilogue epilogue{params, pipe.base + kStagingAt + consumer * 4 * kStagingBytes, consumer,
                            warp, lane};
    for (int t = cluster; t < work.total(); t += clusters) {
      const WeightTile tile = work.at(t);
      const int m = tile.m + 64 * consumer;
      if (tile.count == 0) {
#pragma unroll
        for (int i = 0; i < 128; ++i) acc[i] = 0;
      }
      multiply.run<Major::kMN, Major::kMN, true, 1>(acc, pipe, (tile.count + kTileK - 1) / kTileK,
                                                    tile.count > 0 && m < g.columns_m);
      if (m < g.columns_m) epilogue.end(acc, tile.expert, m, tile.n, tile.count == 0);
    }
  }
  cluster_sync();
}

}  // namespace troupe::sm90
