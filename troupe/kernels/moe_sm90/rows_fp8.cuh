// Products over packed rows with 8-bit operands. Tile, ring, tile order and producer are those of
// moe_sm90 (a slot of 64 bf16 k is one of 128 k in 8 bits: the same bytes, the same boxes); what
// differs is the consumer, which takes a partial sum out of the tensor cores every 128 of k.
#pragma once

#include "troupe/kernels/device/matrix_store.cuh"
#include "troupe/kernels/device/wgmma_fp8.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe::sm90 {

constexpr int kStepK = 128;     // of a slot: one group of every scale
constexpr int kSlotPairs = 64;  // the same in the 16-bit units of moe_sm90

// Scales of the 128 x 128 blocks of a weight: data[expert e + n (column tile) + half h + k (step)].
struct WeightScales {
  const float* data;
  int64_t expert;
  int n, half, k;
  int blocks;  // column blocks there are: a last half tile has no second one
};

struct RowsFp8 {
  RowsGemm gemm;  // k and bytes in 16-bit units
  WeightScales weight;
  const float* rows;  // packed: [K / 128][rows_ld]; gathered: [T], of a whole row
  int64_t rows_ld;    // 0: packed rows have a scale for a whole row, too
};

// acc[half] += scale x part; where rows have scales of their own, by row.
template <int kHalf>
__device__ inline void promote(Accumulator& acc, const HalfAccumulator& part, float low,
                               float high) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    acc[64 * kHalf + i] = fmaf(part[i], i % 4 < 2 ? low : high, acc[64 * kHalf + i]);
  }
}

// Where the scales of a tile's steps are in memory.
struct StepScales {
  const float* weight;  // of block 0; block 1's is `half` further
  int half, k;          // k: to the next step
};

// A slot's scales in shared memory: those of blocks 0 and 1 of the weight, and where rows have
// scales of their own those of the tile's 128 rows behind them.
constexpr uint32_t kRowScalesAt = 16;
constexpr uint32_t scale_bytes(bool of_rows) {
  return kRowScalesAt + (of_rows ? kTileM * 4 : 0);
}

// By lanes 0 and 1 of a producer's warp, before they say that their copies have landed.
__device__ inline void copy_weight_scale(uint32_t slot_scales, const StepScales& at, int step,
                                         int lane) {
  copy4(slot_scales + 4 * lane, at.weight + lane * at.half + int64_t{step} * at.k, 4);
}

// Operand A of a consumer's 64 rows, K-major in shared memory.
struct SharedA {
  static constexpr bool kInRegisters = false;
  int index;

  __device__ explicit SharedA(const Consumer& me) : index(me.index) {}
  __device__ uint32_t load(uint32_t slot) const { return operand_fp8(slot + index * 64 * kStepK); }
  __device__ static void multiply(HalfAccumulator& part, uint32_t a, uint32_t b) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_fp8(part, a + k * kNextK32, b + k * kNextK32, k > 0);
    wgmma_commit();
  }
};

// A consumer warpgroup's half of a tile, as Multiply of pipe.cuh. The 64 x 256 are two halves of
// 128 columns, one temporary: four wgmma, wait, promote. While one warpgroup promotes, the other
// multiplies. Scales come with the slot and are read under the first half's products. What the next
// step's first products need is made ready under the second half's, where operand A stays in shared
// memory; into registers it is read when they are free.
//
// kThreadsCopy: as in Multiply; wgmma reads those rows from shared memory.
template <class G, bool kRowScales, class OperandA, bool kThreadsCopy>
struct MultiplyFp8 {
  OperandA operand_a;
  int lane;
  uint32_t row;  // of the lane's first row's scale, behind a slot's scales

  __device__ explicit MultiplyFp8(const Consumer& me)
      : operand_a(me),
        lane(me.lane),
        row(kRowScalesAt + 4 * (64 * me.index + 16 * me.warp + me.lane / 4)) {}

  // Lanes 0 and 1 of a warp tell block 0 and block 1, when all lanes have read their scales.
  __device__ void release(const Pipe<G>& pipe, int slot) const {
    __syncwarp();
    if (lane < 2) barrier_arrive_remote(remote_address(pipe.empty(slot), lane));
  }

  template <class F>
  __device__ void run(Accumulator& acc, Pipe<G>& pipe, int steps, bool active, F&& aside) const {
    if (!active) {
      aside();
      return skip(pipe, steps);
    }
#pragma unroll
    for (int i = 0; i < 128; ++i) acc[i] = 0;
    HalfAccumulator part = {};
    constexpr bool kEarly = !OperandA::kInRegisters;
    decltype(operand_a.load(0)) a;
    if constexpr (kEarly) {
      pipe.wait_full();
      a = operand_a.load(pipe.a());
    }
    for (int step = 0; step < steps; ++step) {
      const bool more = step + 1 < steps;
      if constexpr (!kEarly) {
        pipe.wait_full();
        a = operand_a.load(pipe.a());
      }
      if (kThreadsCopy) async_proxy_fence();
      const uint32_t b = operand_fp8(pipe.b());
      OperandA::multiply(part, a, b);
      const float2 w = load_shared8(pipe.scales());
      float low = 1, high = 1;
      if (kRowScales) {
        low = load_shared4(pipe.scales() + row), high = load_shared4(pipe.scales() + row + 32);
      }
      const float low1 = w.y * low, high1 = w.y * high;
      low *= w.x, high *= w.x;
      wgmma_wait<0>();
      settle(part);
      promote<0>(acc, part, low, high);
      OperandA::multiply(part, a, b + kNextHalf);
      const int slot = pipe.slot;
      pipe.advance();
      bool ready = false;
      if constexpr (kEarly) {
        ready = more && barrier_test(pipe.full(), pipe.phase);
        a = operand_a.load(pipe.a());
      }
      wgmma_wait<0>();
      settle(part);
      release(pipe, slot);
      if (kEarly && more && !ready) pipe.wait_full();
      promote<1>(acc, part, low1, high1);
      if (step == 0) aside();
    }
  }

  __device__ void skip(Pipe<G>& pipe, int steps) const {
    for (int step = 0; step < steps; ++step) {
      pipe.wait_full();
      release(pipe, pipe.slot);
      pipe.advance();
    }
  }
};

// The scales of this lane's two rows of a gathered operand, whole rows' ones: read once under the
// products, so that they are in the cache, and again where they are used.
struct TokenScales {
  float low, high;

  __device__ static float of(const RowsFp8& g, int row, bool exists) {
    const int source = exists ? load_early(g.gemm.row_src + row) : -1;
    return source < 0 ? 1.0f : load_early(g.rows + source);
  }
  __device__ TokenScales(const RowsFp8& g, int row, int valid, const Consumer& me) {
    const int in_tile = 16 * me.warp + opaque(me.lane) / 4;
    low = of(g, row + in_tile, in_tile < valid);
    high = of(g, row + in_tile + 8, in_tile + 8 < valid);
  }
  __device__ void apply(Accumulator& acc) const {
#pragma unroll
    for (int i = 0; i < 128; ++i) acc[i] *= i % 4 < 2 ? low : high;
  }
};

// 128 rows of 128 bytes of a gathered operand into a slot, swizzled as the copy engine does it: a
// warp copies 32 of them, four at a time, eight chunks of 16 bytes a row. Lane i has the source of
// the warp's row i, or -1: zeros. `at` is where this lane's chunk begins in row 0 of the source;
// `bytes` is 0 where the row has no such chunk.
__device__ inline void gather_slot(uint32_t slot, const uint8_t* at, uint32_t row_bytes, int src,
                                   int thread, uint32_t bytes) {
  const int warp = thread / 32, lane = thread % 32;
  const int chunk = lane % 8, in_four = lane / 8;
  const uint32_t dst = slot + (warp * 32 + in_four) * 128;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = __shfl_sync(0xffffffffu, src, 4 * i + in_four);
    copy16(dst + i * 512 + ((chunk ^ ((4 * i + in_four) & 7)) << 4),
           at + uint64_t{static_cast<uint32_t>(max(row, 0))} * row_bytes, row >= 0 ? bytes : 0);
  }
}

// What a role knows of its place. Made by each for itself: what lives across the roles' branch
// would not fit into the producer's registers.
template <class G>
struct Place {
  int group, warp, lane, cluster, clusters, rank;
  Pipe<G> pipe;

  __device__ explicit Place(uint8_t* shared) {
    int thread;
    uint32_t base;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    asm volatile("{\n.reg .u64 t;\ncvta.to.shared.u64 t, %1;\ncvt.u32.u64 %0, t;\n}\n"
                 : "=r"(base)
                 : "l"(shared));
    group = thread / kWarpgroup, warp = thread / 32 % 4, lane = thread % 32;
    cluster = static_cast<int>(blockIdx.x / 2), clusters = static_cast<int>(gridDim.x / 2);
    rank = static_cast<int>(cluster_rank());
    pipe = {base};
  }
  __device__ Consumer consumer() const {
    return {pipe.staging(group - 1), pipe.epilogue_barriers(group - 1), group - 1, warp, lane};
  }
};

// A tile waits in shared memory: registers are short.
__device__ inline void put_tile(uint32_t at, const RowTile& tile) {
  store_shared16(at, make_uint4(tile.expert, tile.row, tile.valid, tile.n));
}
__device__ inline RowTile take_tile(uint32_t at) {
  const uint4 v = load_shared16(at);
  return {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z),
          static_cast<int>(v.w)};
}

// Where a block's consumers learn its i-th tile. The producer is at most as many tiles ahead
// as there are slots.
template <class G>
__device__ inline uint32_t told_tile(const Pipe<G>& pipe, int i) {
  static_assert(G::kSlots < 8);
  return pipe.base + G::kTilesAt + (i & 7) * 16;
}

// Spec::kWholeTiles: a block's tile begins at a multiple of 128 of its expert's rows, and both
// consumers take part in its epilogue where it has rows; rows of it that do not exist are zeros. So
// a rest of up to 128 rows, which RowWork splits over both blocks, is the first block's.
template <class Spec>
__device__ inline RowTile tile_at(const RowWork& work, int t) {
  RowTile tile = work.at(t);
  if constexpr (Spec::kWholeTiles) {
    const int left = work.offset[tile.expert + 1] - tile.row;
    tile.valid = (tile.row - work.offset[tile.expert]) % kTileM == 0 ? min(left, kTileM) : 0;
  }
  return tile;
}

// Tells a block's consumers tile t of the list, as their i-th; after the last one, that there is none.
constexpr int kNoExpert = -1;
template <class Spec>
__device__ inline void tell(const Place<typename Spec::G>& me, const RowWork& work, int t, int i) {
  const RowTile none{kNoExpert, 0, 0, 0};
  put_tile(told_tile<typename Spec::G>(me.pipe, i),
           t < work.total() ? tile_at<Spec>(work, t) : none);
}

// The thread that fills the ring tells the tile after tile i, which consumers find with tile i's
// first slot.
template <class Spec>
__device__ inline void tell_next(const Place<typename Spec::G>& me, const RowWork& work, int t,
                                 int i) {
  tell<Spec>(me, work, t + me.clusters, i + 1);
}

template <class Spec>
__device__ inline StepScales scales_of(const RowsFp8& g, const RowTile& tile) {
  const bool both = Spec::kBoxes == WeightBoxes::kGateAndUp || 2 * tile.n + 1 < g.weight.blocks;
  return {g.weight.data + tile.expert * g.weight.expert + tile.n * g.weight.n,
          both ? g.weight.half : 0, g.weight.k};
}

// Rows that all four warps copy: thread i copies chunk i % 8 of rows 4 j + i / 8 % 4 of its warp's
// 32. Where they come from stays in registers over a tile, in units of 16 bytes.
template <class Spec>
__device__ inline void produce_gathered(const RowsFp8& g, const CUtensorMap& b_map,
                                        const RowWork& work, Place<typename Spec::G>& me) {
  const RowsProducer<Spec> weights{g.gemm, nullptr, &b_map, me.rank};
  for (int t = me.cluster, i = 0; t < work.total(); t += me.clusters, ++i) {
    const RowTile tile = take_tile(told_tile<typename Spec::G>(me.pipe, i));
    if (me.warp == 0 && me.lane == 0) tell_next<Spec>(me, work, t, i);
    named_sync<3>(kWarpgroup);  // These warps learn the next tile too.
    const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32;
    const int chunk = lane % 8, in_four = lane / 8;
    const uint32_t to = (thread / 32 * 32 + in_four) * kStepK;
    uint32_t from[8],
        there = 0;  // Bit 4 + j: row j is there; 16 bytes of it are copied, else zeros.
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int r = 32 * me.warp + 4 * j + in_four;
      const int src = r < tile.valid ? __ldg(g.gemm.row_src + tile.row + r) : -1;
      there |= uint32_t{src >= 0} << (4 + j);
      from[j] = static_cast<uint32_t>(max(src, 0)) * (g.gemm.gather_row_bytes / 16) + chunk;
    }
    const bool any = Spec::kWholeTiles || 32 * me.warp < tile.valid;
    for (int step = 0; step < g.gemm.k / kSlotPairs; ++step) {
      me.pipe.wait_empty();
      if (me.warp == 0 && me.lane == 0) {
        barrier_expect(me.pipe.full(), Spec::G::kBBytes);
        weights.load_weight(me.pipe, tile, step);
      }
      __syncwarp();
      if (me.warp == 3 && me.lane < 2) {
        copy_weight_scale(me.pipe.scales(), scales_of<Spec>(g, tile), step, me.lane);
      }
      if (any) {
        const uint32_t dst = me.pipe.a() + to;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int swizzle = chunk ^ (in_four + 4 * (j % 2));
          copy16(dst + j * 4 * kStepK + (swizzle << 4),
                 g.gemm.gather + uint64_t{from[j] + step * (kStepK / 16)} * 16, there >> j & 16);
        }
      }
      copy16_arrive(me.pipe.full());
      me.pipe.advance();
    }
  }
}

// One thread: rows that are packed, and weights.
template <class Spec>
__device__ inline void produce_packed(const RowsFp8& g, const CUtensorMap& a_map,
                                      const CUtensorMap& b_map, const RowWork& work,
                                      Place<typename Spec::G>& me) {
  const RowsProducer<Spec> producer{g.gemm, &a_map, &b_map, me.rank};
  const int steps = g.gemm.k / kSlotPairs;
  for (int t = me.cluster, i = 0, total = work.total(); t < total; t += me.clusters, ++i) {
    const RowTile tile = take_tile(told_tile<typename Spec::G>(me.pipe, i));
    for (int step = 0; step < steps; ++step) {
      me.pipe.wait_empty();
      if (step == min(1, steps - 1)) tell_next<Spec>(me, work, t, i);
      producer.load_packed(me.pipe, tile, step);
      me.pipe.advance();
    }
  }
}

// By a warp beside the copy engine's thread: the scales of packed rows and of their weight.
template <class Spec>
__device__ inline void produce_scales(const RowsFp8& g, const RowWork& work,
                                      Place<typename Spec::G>& me) {
  for (int t = me.cluster, total = work.total(); t < total; t += me.clusters) {
    const RowTile tile = work.at(t);
    const StepScales scales = scales_of<Spec>(g, tile);
    const float* rows = g.rows + tile.row + me.lane;
    for (int step = 0; step < g.gemm.k / kSlotPairs; ++step) {
      me.pipe.wait_empty();
      const uint32_t to = me.pipe.scales();
      if (me.lane < 2) copy_weight_scale(to, scales, step, me.lane);
#pragma unroll
      for (int i = 0; i < kTileM / 32; ++i) {
        const bool exists = 32 * i + me.lane < tile.valid;
        copy4(to + kRowScalesAt + 4 * (32 * i + me.lane), exists ? rows + 32 * i : g.rows,
              exists ? 4 : 0);
      }
      rows += g.rows_ld;
      copy16_arrive(me.pipe.full());
      me.pipe.advance();
    }
  }
}

template <class G>
__device__ inline RowWork tiles_of(const RowsFp8& g, uint8_t* shared, int rank) {
  return RowWork::view(shared + G::kTablesAt, g.gemm.experts, g.gemm.n_tiles, rank,
                       g.gemm.tails_last);
}

template <class Spec>
__device__ inline void consume(const RowsFp8& g, const typename Spec::Epilogue::Params& params,
                               Place<typename Spec::G>& place) {
  using G = typename Spec::G;
  const Consumer me = place.consumer();
  const MultiplyFp8<G, !Spec::kGather, SharedA, Spec::kGather> multiply(me);
  Accumulator acc;
  typename Spec::Epilogue epilogue{params, me};
  for (int i = 0;; ++i) {
    RowTile tile = take_tile(told_tile<G>(place.pipe, i));
    if (tile.expert == kNoExpert) break;
    const auto first = [&] { return tile.row + 64 * me.index; };  // this consumer's rows
    const auto valid = [&] { return min(64, tile.valid - 64 * me.index); };
    const bool active = (Spec::kWholeTiles ? tile.valid : valid()) > 0;
    epilogue.begin(tile, first(), valid());
    multiply.run(acc, place.pipe, g.gemm.k / kSlotPairs, active, [&] {
      epilogue.fetch();
      if (Spec::kGather) TokenScales(g, first(), valid(), me);
    });
    if (!active) continue;
    if (Spec::kWholeTiles) {  // Its epilogue is long: no registers are left to keep the tile.
      tile = take_tile(told_tile<G>(place.pipe, i));
      epilogue.begin(tile, first(), valid());
    }
    if (Spec::kGather) TokenScales(g, first(), valid(), me).apply(acc);
    epilogue.end(acc);
  }
  if (me.lane == 0) store_wait_read<0>();
}

// As rows_gemm_kernel.
template <class Spec>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    rows_fp8_kernel(const __grid_constant__ RowsFp8 g,
                    const __grid_constant__ typename Spec::Epilogue::Params params,
                    const __grid_constant__ CUtensorMap a_map,
                    const __grid_constant__ CUtensorMap b_map) {
  using G = typename Spec::G;
  static_assert(G::kK == kSlotPairs);
  constexpr int kProducerRegisters = 40;
  extern __shared__ __align__(1024) uint8_t shared[];
  if (threadIdx.x == 0) {
    const Place<G> me(shared);
    if (me.pipe.base % 1024 != 0) give_up();
    me.pipe.init(1 + (Spec::kGather ? kWarpgroup : 32));
    prefetch_map(&b_map);
    if (!Spec::kGather) prefetch_map(&a_map);
  }
  if (threadIdx.x / 32 == 4) {
    const Place<G> me(shared);
    const RowWork work = tiles_of<G>(g, shared, me.rank);
    work.fill(g.gemm.expert_offset, me.lane);
    __syncwarp();
    if (me.lane == 0) tell<Spec>(me, work, me.cluster, 0);
  }
  __syncthreads();
  cluster_sync();

  if (threadIdx.x < kWarpgroup) {
    registers_shrink<kProducerRegisters>();
    Place<G> me(shared);
    const RowWork work = tiles_of<G>(g, shared, me.rank);
    stagger_start(g.gemm.stagger, me.cluster, work.total());
    if constexpr (Spec::kGather) {
      produce_gathered<Spec>(g, b_map, work, me);
    } else if (me.warp == 0) {
      if (me.lane == 0) produce_packed<Spec>(g, a_map, b_map, work, me);
      __syncwarp();
    } else if (me.warp == 1) {
      produce_scales<Spec>(g, work, me);
    }
  } else {
    registers_grow<(504 - kProducerRegisters) / 16 * 8>();
    Place<G> me(shared);
    consume<Spec>(g, params, me);
  }
  cluster_sync();  // A block's memory must outlive its neighbor's copies and arrivals.
}

// The host's half. `width` bytes a row of the gathered or packed operand.
inline RowsGemm rows_fp8_gemm(const PlanRef& plan, const uint8_t* gather, int64_t width,
                              int64_t columns, int64_t tile_columns) {
  const MatRef source{gather, Dtype::kBF16, 0, width / 2, width / 2};
  return rows_gemm(plan, gather == nullptr ? nullptr : &source, width / 2, columns, tile_columns);
}

}  // namespace troupe::sm90
