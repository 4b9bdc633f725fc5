// The epilogue of `up`: H in bf16 as Swiglu of moe_sm90 writes it, and A in 8 bits. A tile has 128
// units, which is one scale of a row: its largest value is in the registers of four lanes.
#pragma once

#include "troupe/core/number/fp8_scale.h"
#include "troupe/kernels/device/e4m3.cuh"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"

namespace troupe::sm90 {

__device__ inline uint32_t quad_max(uint32_t v) {
  v = max(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return max(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

// The bytes of two bf16.
__device__ inline uint16_t two_bytes(uint32_t pair, const Fp8Scale& s) {
  return static_cast<uint16_t>(e4m3_pair(low_bf16(pair) * s.inverse, high_bf16(pair) * s.inverse));
}

__device__ inline void store_shared2(uint32_t address, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}

struct SwigluFp8 {
  static constexpr int kBuffers = 3;  // of a warp, H of 32 units each; and one of A
  static constexpr uint32_t kBufferBytes = 2 * kWarpBytes<4>;
  static constexpr uint32_t kStagingBytes = 4 * (kBuffers + 1) * kBufferBytes;
  struct Params {
    CUtensorMap h_map, a_map;  // boxes of 16 rows: of 32 columns; of 128 bytes
    Bits16* h;                 // [R, 2 units], lane order
    uint8_t* a;                // [R, units]
    float* a_scales;           // [units / 128, R]
    uint32_t units;            // F, a multiple of 128
    int64_t rows;              // R
    const float* score;
    const int32_t* row_slot;
  };
  const Params& p;
  Consumer me;
  RowSpan span = {};
  int tile_n = 0;
  RowScores score = {};

  __device__ void begin(const RowTile& tile, int row, int valid) {
    span = {row, valid};
    tile_n = tile.n;
  }
  __device__ void fetch() { score.load(p.score, p.row_slot, span, me); }

  // A of the lane's two rows: pair j has units 8 j + 2 (lane % 4) and the next.
  struct Act {
    uint32_t low[16], high[16];
  };

  // H of 16 units, blocks j and j + 1 of 8, and their A.
  __device__ Swiglu::Group group(const Accumulator& acc, int j, Act& a) const {
    return Swiglu::group(acc + 4 * j, score, a.low + j, a.high + j);
  }

  __device__ uint32_t buffer(int i) const {
    return me.staging + me.warp * (kStagingBytes / 4) + i * kBufferBytes;
  }
  __device__ int row() const { return span.row + 16 * me.warp; }
  __device__ int valid() const { return span.valid - 16 * me.warp; }

  // A warp waits for nobody: what it has made leaves shared memory while it makes more.
  __device__ void end(const Accumulator& acc) {
    const WarpOutput<true> h_out{&p.h_map, p.h, 2 * p.units};
    Act a;
#pragma unroll
    for (int c = 0; c < 128 / kUnits; ++c) {
      const Swiglu::Group first = group(acc, 4 * c, a), second = group(acc, 4 * c + 2, a);
      if (c == 0) {
        if (me.lane == 0) store_wait_read<0>();
        __syncwarp();
      } else if (c >= kBuffers) {
        if (me.lane == 0) store_wait_read<kBuffers - 1>();
        __syncwarp();
      }
      const int lane = opaque(me.lane);
      const uint32_t to = buffer(c % kBuffers), at = to + staged<4>(lane / 4, lane % 4);
      store_shared16(at, first.low), store_shared16(at + kEightRows, first.high);
      store_shared16(at + kWarpBytes<4>, second.low);
      store_shared16(at + kWarpBytes<4> + kEightRows, second.high);
      async_proxy_fence();
      __syncwarp();
      const int column = 2 * (128 * tile_n + kUnits * c);
      h_out.store<4>(me, to, row(), column, valid());
      h_out.store<4>(me, to + kWarpBytes<4>, row(), column + 32, valid());
      if (me.lane == 0) store_commit();
    }
    store_activation(a);
  }

  __device__ static Fp8Scale scale_of(const uint32_t (&pairs)[16]) {
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      top = max(top, max(pairs[j] << 16 & 0x7fffffffu, pairs[j] & 0x7fff0000u));
    }
    return fp8_scale(quad_max(top));
  }

  __device__ void store_activation(const Act& a) const {
    const Fp8Scale low = scale_of(a.low), high = scale_of(a.high);
    const int lane = opaque(me.lane), in_tile = 16 * me.warp + lane / 4;
    float* const scales = p.a_scales + opaque(tile_n) * p.rows + span.row + in_tile;
    if (lane % 4 == 0 && in_tile < span.valid) scales[0] = low.scale;
    if (lane % 4 == 0 && in_tile + 8 < span.valid) scales[8] = high.scale;
    const uint32_t to = buffer(kBuffers);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const uint32_t at = to + staged<8>(lane / 4, j / 2) + j % 2 * 8 + lane % 4 * 2;
      store_shared2(at, two_bytes(a.low[j], low));
      store_shared2(at + 8 * 128, two_bytes(a.high[j], high));
    }
    async_proxy_fence();
    __syncwarp();
    const WarpOutput<> out{&p.a_map, reinterpret_cast<Bits16*>(p.a), p.units / 2};
    out.store<8>(me, to, row(), 64 * tile_n, valid());
    if (me.lane == 0) store_commit();
  }
};

}  // namespace troupe::sm90
