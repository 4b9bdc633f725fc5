// What becomes of a tile of a product over packed rows. A warp owns 16 of its rows; it turns the
// accumulators into 64-column chunks through its own corner of shared memory, so that every store
// writes whole 128-byte lines, and rows past the expert's end are just not stored.
#pragma once

#include "troupe/kernels/device/matrix_store.cuh"
#include "troupe/kernels/moe_sm90/work.cuh"

namespace troupe::sm90 {

using Bits16 = uint16_t;  // A bf16 in memory.

// A warp's 16 rows x 8 kBlocks columns of bf16 pairs, as the accumulators hold them.
template <int kBlocks>
struct Chunk {
  uint32_t low[kBlocks];   // row lane / 4, columns 8 j + 2 (lane % 4) and the next
  uint32_t high[kBlocks];  // row lane / 4 + 8
};

// Where 16 bytes of a row lie in the warp's corner: swizzled so that eight rows, or eight
// neighbours of one or two rows, lie in different banks.
template <int kBlocks>
__device__ inline uint32_t staged(int row, int part) {
  const int swizzle = kBlocks == 8 ? row & 7 : row / 2 & 3;
  return row * kBlocks * 16 + ((part ^ swizzle) << 4);
}

template <int kBlocks>
__device__ inline void stage(uint32_t staging, int lane, const Chunk<kBlocks>& chunk) {
  const int matrix = lane / 8, row = (matrix & 1) * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < kBlocks; j += 2) {
    store_matrices(staging + staged<kBlocks>(row, j + matrix / 2), chunk.low[j], chunk.high[j],
                   chunk.low[j + 1], chunk.high[j + 1]);
  }
}

// Writes what is staged to rows 0 .. valid - 1 of `to`.
template <int kBlocks>
__device__ inline void unstage(uint32_t staging, int lane, Bits16* to, uint32_t ld, int valid) {
  constexpr int kRows = 32 / kBlocks;  // of one store of the warp
  const int row = lane / kBlocks, part = lane % kBlocks;
  Bits16* at = to + row * ld + part * 8;
#pragma unroll
  for (int r = 0; r < 16; r += kRows) {
    const uint4 line = load_shared16(staging + staged<kBlocks>(r + row, part));
    if (r + row < valid) *reinterpret_cast<uint4*>(at) = line;
    at += kRows * ld;
  }
}

// Both, for one chunk. All lanes of the warp.
template <int kBlocks>
__device__ inline void store_chunk(uint32_t staging, int lane_id, const Chunk<kBlocks>& chunk,
                                   Bits16* to, uint32_t ld, int valid) {
  const int lane = opaque(lane_id);
  stage(staging, lane, chunk);
  __syncwarp();
  unstage<kBlocks>(staging, lane, to, ld, valid);
  __syncwarp();
}

// C as it is: Y = A W2^T and dXt = dH W1.
struct StoreRows {
  struct Params {
    Bits16* out;       // [R, columns]
    uint32_t columns;  // a multiple of 64
  };
  const Params& p;
  uint32_t staging;
  int lane;
  int row = 0;
  int valid = 0;
  uint32_t column = 0;

  __device__ void begin(const RowTile& tile, int first_row, int rows) {
    row = first_row;
    valid = rows;
    column = tile.n * kTileN;
  }

  __device__ void end(const Accumulator& acc) const {
    Bits16* to = p.out + int64_t{row} * p.columns + column;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (column + 64 * c >= p.columns) return;
      Chunk<8> chunk;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* d = acc + 32 * c + 4 * j;
        chunk.low[j] = pack_bf16(d[0], d[1]);
        chunk.high[j] = pack_bf16(d[2], d[3]);
      }
      store_chunk(staging, lane, chunk, to + 64 * c, p.columns, valid);
    }
  }
};

// silu and what its derivative needs, the same bits forward and backward.
struct Silu {
  float p;      // sigmoid(g)
  float value;  // g p

  __device__ explicit Silu(float g) {
    float e, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(g * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + e));
    p = inverse;
    value = __fmul_rn(g, p);
  }
  __device__ float slope() const { return p + value - value * p; }
};

// The weight of this lane's two rows: score[row_slot[r]], or 0 where there is no row.
struct RowScores {
  float low = 0, high = 0;

  __device__ static float of(const float* score, const int32_t* row_slot, int64_t row,
                             bool exists) {
    const int slot = exists ? __ldg(row_slot + row) : -1;
    return slot < 0 ? 0.0f : score == nullptr ? 1.0f : __ldg(score + slot);
  }
  __device__ void load(const float* score, const int32_t* row_slot, int64_t row, int valid,
                       int lane) {
    low = of(score, row_slot, row + lane / 4, lane / 4 < valid);
    high = of(score, row_slot, row + lane / 4 + 8, lane / 4 + 8 < valid);
  }
};

// Where H keeps the 16 units of a group in a row: the 8 values that lane q of a quad has for it lie
// together, so H is written and read from registers, 16 bytes a lane. Words of lane q:
// gates (2q, 2q+1), ups (2q, 2q+1), gates (8+2q, 8+2q+1), ups (8+2q, 8+2q+1).
// This lane's words of the group at `unit` (a multiple of 16), in the first of its two rows.
template <class T>
__device__ inline T* hidden_at(T* h, int row, uint32_t units, int unit, int lane) {
  return h + int64_t{row + lane / 4} * (2 * units) + 2 * unit + 8 * (lane % 4);
}
constexpr int kHiddenGroup = 32;  // Values of H of a group of 16 units.

// H = C rounded, A = s silu(gate) up from the rounded H. Columns 0..127 of a tile are gates,
// 128..255 the ups of the same units: a lane has both.
struct Swiglu {
  struct Params {
    Bits16* h;       // [R, 2 units], lane order
    Bits16* a;       // [R, units]
    uint32_t units;  // F, a multiple of 64
    const float* score;
    const int32_t* row_slot;
  };
  const Params& p;
  uint32_t staging;
  int lane;
  int row = 0;
  int valid = 0;
  int unit = 0;
  RowScores score = {};

  __device__ void begin(const RowTile& tile, int first_row, int rows) {
    row = first_row;
    valid = rows;
    unit = tile.n * 128;
    score.load(p.score, p.row_slot, row, valid, lane);
  }

  __device__ static uint32_t activate(uint32_t gates, uint32_t ups, float s) {
    const float a = __fmul_rn(__fmul_rn(Silu(low_bf16(gates)).value, low_bf16(ups)), s);
    const float b = __fmul_rn(__fmul_rn(Silu(high_bf16(gates)).value, high_bf16(ups)), s);
    return pack_bf16(a, b);
  }

  // One group of 16 units: its gates are blocks `gate` and `gate + 4`, its ups 64 further.
  __device__ void group(const float* gate, Bits16* low_at, Bits16* high_at, uint32_t* a_low,
                        uint32_t* a_high) const {
    uint32_t low[4], high[4];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const float* g = gate + 4 * b;
      const float* u = g + 64;
      low[2 * b] = pack_bf16(g[0], g[1]);
      low[2 * b + 1] = pack_bf16(u[0], u[1]);
      high[2 * b] = pack_bf16(g[2], g[3]);
      high[2 * b + 1] = pack_bf16(u[2], u[3]);
      a_low[b] = activate(low[2 * b], low[2 * b + 1], score.low);
      a_high[b] = activate(high[2 * b], high[2 * b + 1], score.high);
    }
    if (lane / 4 < valid) {
      __stcs(reinterpret_cast<uint4*>(low_at), make_uint4(low[0], low[1], low[2], low[3]));
    }
    if (lane / 4 + 8 < valid) {
      __stcs(reinterpret_cast<uint4*>(high_at), make_uint4(high[0], high[1], high[2], high[3]));
    }
  }

  __device__ void end(const Accumulator& acc) const {
    const int me = opaque(lane);
    Bits16* low = hidden_at(p.h, row, p.units, unit, me);
    Bits16* high = low + 16 * p.units;
    Bits16* to = p.a + int64_t{row} * p.units + unit;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (unit + 64 * c >= p.units) return;
      Chunk<8> chunk;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (4 * c + i) * kHiddenGroup;
        group(acc + 32 * c + 8 * i, low + at, high + at, chunk.low + 2 * i, chunk.high + 2 * i);
      }
      store_chunk(staging, me, chunk, to + 64 * c, p.units, valid);
    }
  }
};

// C is G = dO W2. With A0 = silu(gate) up: dS partial = sum over the tile's units of G A0, A = s
// A0, d(up) = s G silu(gate), d(gate) = s G up silu'(gate).
struct SwigluBackward {
  struct Params {
    const Bits16* h;  // [R, 2 units], lane order
    Bits16* grad_h;   // [R, 2 units], gates then ups
    Bits16* a;        // [R, units]
    float* partial;   // [R, tiles]: sum of G A0 over a tile's units
    uint32_t units;
    int tiles;
    const float* score;
    const int32_t* row_slot;
  };
  // H of 32 units: two groups of 16, for the lane's two rows.
  struct Hidden {
    uint4 low[2], high[2];
  };
  const Params& p;
  uint32_t staging;
  int lane;
  int row = 0;
  int valid = 0;
  int tile_n = 0;
  RowScores score = {};

  __device__ int unit() const { return tile_n * kTileN; }

  // `at` names this lane's first row. Rows that do not exist read as zero: their NaN must not
  // matter, though nothing of theirs is stored.
  __device__ void load(Hidden& to, const Bits16* at) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.low[i] = to.high[i] = make_uint4(0, 0, 0, 0);
      const Bits16* group = at + kHiddenGroup * i;
      if (lane / 4 < valid) to.low[i] = __ldcs(reinterpret_cast<const uint4*>(group));
      if (lane / 4 + 8 < valid) {
        to.high[i] = __ldcs(reinterpret_cast<const uint4*>(group + 16 * p.units));
      }
    }
  }

  // The warp's part of H is 16 rows x 1 KB: into L2 before the product, from there after it.
  __device__ void prefetch() const {
    const int lines = static_cast<int>(min(uint32_t{8}, (p.units - unit()) / 32));
    for (int line = lane; line < 16 * 8; line += 32) {
      if (line / 8 >= valid || line % 8 >= lines) continue;
      const Bits16* at =
          p.h + int64_t{row + line / 8} * (2 * p.units) + 2 * unit() + 64 * (line % 8);
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    }
  }

  __device__ void begin(const RowTile& tile, int first_row, int rows) {
    row = first_row;
    valid = rows;
    tile_n = tile.n;
    score.load(p.score, p.row_slot, row, valid, lane);
    prefetch();
  }

  // One unit pair of one row: H words in, words of d(gate), d(up), A out; returns G . A0.
  __device__ static float differentiate(uint32_t gates, uint32_t ups, float s, const float* g,
                                        uint32_t& d_gate, uint32_t& d_up, uint32_t& a) {
    const float up0 = low_bf16(ups), up1 = high_bf16(ups);
    const Silu act0(low_bf16(gates)), act1(high_bf16(gates));
    const float a0 = __fmul_rn(act0.value, up0), a1 = __fmul_rn(act1.value, up1);
    const float sg0 = s * g[0], sg1 = s * g[1];
    d_up = pack_bf16(sg0 * act0.value, sg1 * act1.value);
    d_gate = pack_bf16(sg0 * up0 * act0.slope(), sg1 * up1 * act1.slope());
    a = pack_bf16(__fmul_rn(a0, s), __fmul_rn(a1, s));
    return g[0] * a0 + g[1] * a1;
  }

  struct Out {
    Chunk<4> d_gate, d_up, a;
  };

  // 32 units of G, that is four blocks of the accumulator.
  __device__ void half_chunk(const Hidden& h, const float* g, Out& out, float& sum_low,
                             float& sum_high) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int b = 2 * i;
      const float* low = g + 8 * i;
      sum_low += differentiate(h.low[i].x, h.low[i].y, score.low, low, out.d_gate.low[b],
                               out.d_up.low[b], out.a.low[b]);
      sum_high += differentiate(h.high[i].x, h.high[i].y, score.high, low + 2, out.d_gate.high[b],
                                out.d_up.high[b], out.a.high[b]);
      sum_low += differentiate(h.low[i].z, h.low[i].w, score.low, low + 4, out.d_gate.low[b + 1],
                               out.d_up.low[b + 1], out.a.low[b + 1]);
      sum_high += differentiate(h.high[i].z, h.high[i].w, score.high, low + 6,
                                out.d_gate.high[b + 1], out.d_up.high[b + 1], out.a.high[b + 1]);
    }
  }

  __device__ void store(const Out& out, int me, Bits16* d_gate, Bits16* a) const {
    stage(staging, me, out.d_gate);
    stage(staging + 1024, me, out.d_up);
    stage(staging + 2048, me, out.a);
    __syncwarp();
    unstage<4>(staging, me, d_gate, 2 * p.units, valid);
    unstage<4>(staging + 1024, me, d_gate + p.units, 2 * p.units, valid);
    unstage<4>(staging + 2048, me, a, p.units, valid);
    __syncwarp();
  }

  __device__ void end(const Accumulator& acc) {
    const int me = opaque(lane);
    const Bits16* h = hidden_at(p.h, row, p.units, unit(), me);
    Bits16* d_gate = p.grad_h + int64_t{row} * (2 * p.units) + unit();
    Bits16* a = p.a + int64_t{row} * p.units + unit();
    float sum_low = 0, sum_high = 0;
    Hidden hidden;
    load(hidden, h);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (unit() + 32 * c >= p.units) break;
      Out out;
      half_chunk(hidden, acc + 16 * c, out, sum_low, sum_high);
      // The next 32 units come while these are stored; two buffers of them would spill.
      if (c < 7 && unit() + 32 * (c + 1) < p.units) load(hidden, h + 2 * kHiddenGroup * (c + 1));
      store(out, me, d_gate + 32 * c, a + 32 * c);
    }
    store_sums(sum_low, sum_high);
  }

  __device__ void store_sums(float low, float high) const {
    for (int step = 1; step < 4; step *= 2) {
      low += __shfl_xor_sync(0xffffffffu, low, step);
      high += __shfl_xor_sync(0xffffffffu, high, step);
    }
    float* to = p.partial + int64_t{row + lane / 4} * p.tiles + tile_n;
    if (lane % 4 == 0 && lane / 4 < valid) *to = low;
    if (lane % 4 == 0 && lane / 4 + 8 < valid) to[8 * p.tiles] = high;
  }
};

}  // namespace troupe::sm90
