// Gradients of the experts' weights with 8-bit operands: C_e[m, n] = sum over the padded rows p of
// expert e of A[row_src[r(p)], m] B[n, p]. 8-bit wgmma wants both operands with the rows p as their
// fastest dimension. B comes so (`columns` of fp8_tiles.h, zeros past an expert's end) by the copy
// engine. A is gathered row by row, 16 bytes a thread, and turned on its way into registers:
// ldmatrix.trans takes 8 x 8 pairs of neighboring m, two byte permutes part the pairs. So row g of
// a fragment is column 2 g of 16, row g + 8 is column 2 g + 1, and the rows p of 16 come in the
// order in which B holds them (fragment_order).
#pragma once

#include "troupe/kernels/device/wgmma_fp8.cuh"
#include "troupe/kernels/moe_sm90/rows_fp8.cuh"
#include "troupe/kernels/moe_sm90/weight_epilogue.cuh"
#include "troupe/kernels/moe_sm90/work.cuh"

namespace troupe::sm90 {

struct WeightFp8 {
  const uint8_t* gather;   // A's rows before the gather, [T, columns_m]
  const int32_t* row_src;  // [R]
  const int32_t* expert_offset;
  const float* scales;  // [P / 128][columns_n / 128]
  int experts;
  int columns_m, columns_n;  // multiples of 128
  int m_pairs, n_tiles;      // ceil(columns_m / 256), ceil(columns_n / 256)
  int stagger;

  // The first of expert e's groups of 128 rows of B.
  __device__ int first_block(const WeightTile& tile) const {
    return tile.row / kStepK + tile.expert;
  }
};

__device__ inline int steps_of(const WeightTile& tile) {
  return (tile.count + kStepK - 1) / kStepK;
}

template <class G>
struct WeightProducerFp8 {
  const WeightFp8& g;
  const CUtensorMap& b_map;
  Place<G>& me;

  // Lane i has the source of row i of this warp's 32 of a step; -1 past the expert's end.
  __device__ int source(const WeightTile& tile, int step) const {
    const int r = step * kStepK + 32 * me.warp + me.lane;
    return r < tile.count ? __ldg(g.row_src + tile.row + r) : -1;
  }

  __device__ void load_b(const WeightTile& tile, int step) const {
    barrier_expect(me.pipe.full(), G::kBBytes);
    const BoxAt at{(g.first_block(tile) + step) * kSlotPairs, tile.n + me.rank * 128, 0, 0};
    copy_box_4d_multicast(me.pipe.b() + me.rank * (G::kBBytes / 2), &b_map, at, me.pipe.full(), 3);
  }

  __device__ void run(const WeightWork& work) const {
    for (int t = me.cluster; t < work.total(); t += me.clusters) {
      const WeightTile tile = work.at(t);
      const int column = tile.m + 16 * (me.lane % 8);
      const uint32_t bytes = column < g.columns_m ? 16 : 0;
      const uint8_t* const at = g.gather + (bytes ? column : 0);
      int src = source(tile, 0);
      const int across = g.columns_n / kStepK, block = tile.n / kStepK;
      const StepScales scales{g.scales + int64_t{g.first_block(tile)} * across + block,
                              block + 1 < across, across};
      for (int step = 0, steps = steps_of(tile); step < steps; ++step) {
        const int next = source(tile, step + 1);
        me.pipe.wait_empty();
        if (me.warp == 0 && me.lane == 0) load_b(tile, step);
        __syncwarp();
        if (me.warp == 3 && me.lane < 2) copy_weight_scale(me.pipe.scales(), scales, step, me.lane);
        gather_slot(me.pipe.a(), at, g.columns_m, src, 32 * me.warp + me.lane, bytes);
        copy16_arrive(me.pipe.full());
        me.pipe.advance();
        src = next;
      }
    }
  }
};

// Operand A from a slot whose rows are k: a warp's 16 columns m of all 128 rows, in registers.
struct TurnedA {
  static constexpr bool kInRegisters = true;
  struct Fragments {
    RegisterA k32[4];
  };
  uint32_t at;

  __device__ explicit TurnedA(const Consumer& me)
      : at(me.lane * 128 + (((4 * me.index + me.warp) ^ (me.lane & 7)) << 4)) {}

  __device__ Fragments load(uint32_t slot) const {
    Fragments a;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 v = load_matrices_transposed(slot + at + k * 32 * 128);
      a.k32[k][0] = __byte_perm(v.x, v.y, 0x6240), a.k32[k][1] = __byte_perm(v.x, v.y, 0x7351);
      a.k32[k][2] = __byte_perm(v.z, v.w, 0x6240), a.k32[k][3] = __byte_perm(v.z, v.w, 0x7351);
    }
    return a;
  }
  __device__ static void multiply(HalfAccumulator& part, const Fragments& a, uint32_t b) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_fp8(part, a.k32[k], b + k * kNextK32, k > 0);
    wgmma_commit();
  }
};

template <class Epilogue, class G>
__device__ inline void consume_weight(const WeightFp8& g, const typename Epilogue::Params& params,
                                      const WeightWork& work, Place<G>& place) {
  const Consumer me = place.consumer();
  const MultiplyFp8<G, false, TurnedA, false> multiply(me);
  Accumulator acc;
  Epilogue epilogue{params, me};
  const int total = work.total();
  const uint32_t kept = place.pipe.base + G::kTilesAt + (4 * me.index + me.warp) * 16;
  const auto keep = [&](const WeightTile& next) {
    const int place_in_c = next.m / kTileM * 65536 + next.n / kTileN;
    __syncwarp();
    if (me.lane == 0) put_tile(kept, {next.expert, next.row, next.count, place_in_c});
    __syncwarp();
  };
  if (place.cluster < total) keep(work.at(place.cluster));
  for (int t = place.cluster; t < total; t += place.clusters) {
    const RowTile v = take_tile(kept);
    const WeightTile tile{v.expert, v.n / 65536 * kTileM, v.n % 65536 * kTileN, v.row, v.valid};
    const int m = tile.m + 64 * me.index;
    if (tile.count == 0) {
#pragma unroll
      for (int i = 0; i < 128; ++i) acc[i] = 0;
    }
    multiply.run(acc, place.pipe, steps_of(tile), tile.count > 0 && m < g.columns_m, [&] {
      if (t + place.clusters < total) keep(work.at(t + place.clusters));
    });
    if (m < g.columns_m) epilogue.end(acc, tile.expert, m, tile.n);
  }
  if (me.leads()) store_wait_read<0>();
}

// As weight_gemm_kernel.
template <class Spec>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    weight_fp8_kernel(const __grid_constant__ WeightFp8 g,
                      const __grid_constant__ typename Spec::Epilogue::Params params,
                      const __grid_constant__ CUtensorMap b_map) {
  using G = typename Spec::G;
  extern __shared__ __align__(1024) uint8_t shared[];
  const auto work_of = [&](const Place<G>& me) {
    return WeightWork{g.expert_offset, g.experts, g.m_pairs, g.n_tiles, me.rank};
  };
  if (threadIdx.x == 0) {
    const Place<G> me(shared);
    if (me.pipe.base % 1024 != 0) give_up();
    me.pipe.init(1 + kWarpgroup);
    prefetch_map(&b_map);
  }
  __syncthreads();
  cluster_sync();

  if (threadIdx.x < kWarpgroup) {
    registers_shrink<40>();
    Place<G> me(shared);
    stagger_start(g.stagger, me.cluster, work_of(me).total());
    WeightProducerFp8<G>{g, b_map, me}.run(work_of(me));
  } else {
    registers_grow<232>();
    Place<G> me(shared);
    consume_weight<typename Spec::Epilogue>(g, params, work_of(me), me);
  }
  cluster_sync();
}

// Stores a tile as StoreWeight of moe_sm90, bf16: out[e][m][n], or out[e][n][m] if transposed. Rows
// of the accumulator are pairs of m: row g is m = 2 g, row g + 8 is m = 2 g + 1 of a warp's 16.
template <bool kTransposed>
struct StoreWeightFp8 {
  static constexpr int kColumns = 64;  // of a chunk
  static constexpr int kChunks = kTileN / kColumns;
  static constexpr uint32_t kChunkBytes = 64 * kColumns * 2;
  static constexpr uint32_t kStagingBytes = kChunks * kChunkBytes;
  struct Params {
    CUtensorMap map;  // boxes of 64 columns x 64 rows
    int columns_m, columns_n;
  };
  const Params& p;
  Consumer me;

  // All chunks are staged, and leave shared memory under the next tile's products.
  __device__ void end(const Accumulator& acc, int expert, int m, int n) const {
    if (me.leads()) store_wait_read<0>();
    me.sync();
    const int lane = opaque(me.lane);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if constexpr (kTransposed) {
        put_transposed(acc + kColumns / 2 * c, me.staging + c * kChunkBytes, lane);
      } else {
        put(acc + kColumns / 2 * c, me.staging + c * kChunkBytes, lane);
      }
    }
    async_proxy_fence();
    me.sync();
    if (!me.leads()) return;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int at = n + kColumns * c;
      if (at >= p.columns_n) break;
      if constexpr (kTransposed) {
        store_box_2d_streaming(&p.map, m, expert * p.columns_n + at, me.staging + c * kChunkBytes);
      } else {
        store_box_2d_streaming(&p.map, at, expert * p.columns_m + m, me.staging + c * kChunkBytes);
      }
    }
    store_commit();
  }

  // Staged rows are m, of 64 n.
  __device__ void put(const float* acc, uint32_t to, int lane) const {
    const int matrix = lane / 8, row = 16 * me.warp + lane % 8 * 2 + matrix % 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float* d = acc + 4 * j;
      store_matrices(to + staged<kColumns / 8>(row, j + matrix / 2), pack_bf16(d[0], d[1]),
                     pack_bf16(d[2], d[3]), pack_bf16(d[4], d[5]), pack_bf16(d[6], d[7]));
    }
  }

  // Staged rows are n, of 64 m. A lane has two neighbors m of a column: one word.
  __device__ void put_transposed(const float* acc, uint32_t to, int lane) const {
    const int part = 2 * me.warp + lane / 16, word = lane / 4 % 4 * 4;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const float* d = acc + 4 * j;
      const int n = 8 * j + lane % 4 * 2;
      store_shared4(to + staged<8>(n, part) + word, pack_bf16(d[0], d[2]));
      store_shared4(to + staged<8>(n + 1, part) + word, pack_bf16(d[1], d[3]));
    }
  }

  __device__ static void store_shared4(uint32_t address, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
  }
};

}  // namespace troupe::sm90
