// What becomes of a tile of a product over packed rows. Where rows are gathered, threads copy
// (cp.async), and the consumers' own loads and stores would queue behind those: there a consumer
// warpgroup turns its 64 rows of the accumulator into chunks in shared memory, each a box that the
// copy engine stores while the next is made; where the expert ends inside the 64 rows, threads
// store the rows that exist instead. Where nothing is gathered, each warp stores its own 16 rows
// and waits for nobody.
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

// Where 16 bytes of a row of 16 kBlocks bytes are, swizzled as the copy engine does it: so that
// eight rows, or eight neighbors of one or two rows, are in different banks.
template <int kBlocks>
__device__ inline uint32_t staged(int row, int part) {
  const int swizzle = kBlocks == 8 ? row & 7 : row / 2 & 3;
  return row * kBlocks * 16 + ((part ^ swizzle) << 4);
}

template <int kBlocks>
constexpr uint32_t kWarpBytes = 16 * kBlocks * 16;  // A warp's 16 rows.

template <int kBlocks>
__device__ inline void stage(uint32_t to, int lane, const Chunk<kBlocks>& chunk) {
  const int matrix = lane / 8, row = (matrix & 1) * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < kBlocks; j += 2) {
    store_matrices(to + staged<kBlocks>(row, j + matrix / 2), chunk.low[j], chunk.high[j],
                   chunk.low[j + 1], chunk.high[j + 1]);
  }
}

// A warp writes its staged 16 rows, but only rows 0 .. valid - 1. Then the staged bytes are free.
template <int kBlocks, bool kStreaming = false>
__device__ inline void unstage(uint32_t from, int lane, Bits16* to, uint32_t ld, int valid) {
  constexpr int kRows = 32 / kBlocks;  // of one store of the warp
  constexpr int kStores = 16 / kRows;
  const int row = lane / kBlocks, part = lane % kBlocks;
  Bits16* at = to + int64_t{row} * ld + part * 8;
  uint4 lines[kStores];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kStores; ++i) {
    lines[i] = load_shared16(from + staged<kBlocks>(kRows * i + row, part));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kStores; ++i) {
    uint4* const line = reinterpret_cast<uint4*>(at);
    if (kRows * i + row < valid) kStreaming ? __stcs(line, lines[i]) : void(*line = lines[i]);
    at += kRows * ld;
  }
}

// A matrix that is written in boxes of 8 kBlocks columns x 64 rows. kStreaming: it is not read
// soon, and its lines leave L2 before those that are.
template <bool kStreaming = false>
struct Output {
  const CUtensorMap* map;
  Bits16* data;
  uint32_t ld;

  // The consumer's box in shared memory to `column` of rows `row` .. `row + valid - 1`.
  template <int kBlocks>
  __device__ void store(const Consumer& me, uint32_t from, int row, int column, int valid) const {
    if (valid >= 64) {
      if (me.leads()) {
        kStreaming ? store_box_2d_streaming(map, column, row, from)
                   : store_box_2d(map, column, row, from);
      }
    } else {
      unstage<kBlocks, kStreaming>(from + me.warp * kWarpBytes<kBlocks>, me.lane,
                                   data + int64_t{row + 16 * me.warp} * ld + column, ld,
                                   valid - 16 * me.warp);
    }
  }
};

// The same by a warp that waits for nobody: its 16 rows, whose boxes have 16 rows too.
template <bool kStreaming = false>
struct WarpOutput {
  const CUtensorMap* map;
  Bits16* data;
  uint32_t ld;

  // What the warp's lanes stored at `from` has gone through async_proxy_fence() and __syncwarp().
  template <int kBlocks>
  __device__ void store(const Consumer& me, uint32_t from, int row, int column, int valid) const {
    if (valid >= 16) {
      if (me.lane == 0) {
        kStreaming ? store_box_2d_streaming(map, column, row, from)
                   : store_box_2d(map, column, row, from);
      }
    } else {
      unstage<kBlocks, kStreaming>(from, me.lane, data + int64_t{row} * ld + column, ld, valid);
    }
  }
};

// The rows of a consumer's tile that an epilogue stores.
struct RowSpan {
  int row = 0;    // first packed row
  int valid = 0;  // up to 64
};

// C as it is: Y = A W2^T and dXt = dH W1.
struct StoreRows {
  static constexpr int kBlocks = 8;  // of 8 columns in a chunk
  static constexpr uint32_t kStagingBytes = 4 * kWarpBytes<kBlocks>;
  struct Params {
    Bits16* out;  // [R, columns]
    uint32_t columns;
  };
  const Params& p;
  Consumer me;
  RowSpan span = {};
  uint32_t column = 0;

  __device__ void begin(const RowTile& tile, int row, int valid) {
    span = {row, valid};
    column = tile.n * kTileN;
  }
  __device__ void fetch() const {}

  __device__ void end(const Accumulator& acc) const {
    const uint32_t staging = me.staging + me.warp * kWarpBytes<kBlocks>;
    Bits16* const out = p.out + int64_t{span.row + 16 * me.warp} * p.columns + column;
#pragma unroll
    for (int c = 0; c < kTileN / 8 / kBlocks; ++c) {
      if (column + 8 * kBlocks * c >= p.columns) return;
      Chunk<kBlocks> chunk;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const float* d = acc + 4 * (kBlocks * c + j);
        chunk.low[j] = pack_bf16(d[0], d[1]);
        chunk.high[j] = pack_bf16(d[2], d[3]);
      }
      stage(staging, opaque(me.lane), chunk);
      unstage<kBlocks, true>(staging, me.lane, out + 8 * kBlocks * c, p.columns,
                             span.valid - 16 * me.warp);
    }
  }
};

// The same where shared memory holds a consumer's whole half of the tile: each warp puts its rows
// there and lets the copy engine store them under the next tile's products.
struct StoreRowsLater {
  static constexpr int kBlocks = 8;
  static constexpr int kChunks = kTileN / 8 / kBlocks;
  static constexpr uint32_t kStagingBytes = kChunks * 4 * kWarpBytes<kBlocks>;
  struct Params {
    CUtensorMap map;  // boxes of 64 columns x 16 rows
    Bits16* out;      // [R, columns]
    uint32_t columns;
  };
  const Params& p;
  Consumer me;
  RowSpan span = {};
  uint32_t column = 0;

  __device__ void begin(const RowTile& tile, int row, int valid) {
    span = {row + 16 * me.warp, valid - 16 * me.warp};
    column = tile.n * kTileN;
  }
  __device__ void fetch() const {}

  __device__ uint32_t chunk_at(int c) const {
    return me.staging + (4 * me.warp + c) * kWarpBytes<kBlocks>;
  }

  __device__ void end(const Accumulator& acc) const {
    const WarpOutput<true> out{&p.map, p.out, p.columns};
    if (me.lane == 0) store_wait_read<0>();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Chunk<kBlocks> chunk;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const float* d = acc + 4 * (kBlocks * c + j);
        chunk.low[j] = pack_bf16(d[0], d[1]);
        chunk.high[j] = pack_bf16(d[2], d[3]);
      }
      stage(chunk_at(c), opaque(me.lane), chunk);
    }
    async_proxy_fence();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint32_t at = column + 8 * kBlocks * c;
      if (at < p.columns) out.store<kBlocks>(me, chunk_at(c), span.row, at, span.valid);
    }
    if (me.lane == 0) store_commit();
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

  __device__ static float of(const float* score, const int32_t* row_slot, int row, bool exists) {
    const int slot = exists ? __ldg(row_slot + row) : -1;
    return slot < 0 ? 0.0f : score == nullptr ? 1.0f : __ldg(score + slot);
  }
  __device__ void load(const float* score, const int32_t* row_slot, const RowSpan& span,
                       const Consumer& me) {
    const int row = 16 * me.warp + me.lane / 4;
    low = of(score, row_slot, span.row + row, row < span.valid);
    high = of(score, row_slot, span.row + row + 8, row + 8 < span.valid);
  }
};

// Where H keeps the 16 units of a group in a row: the 8 values that lane q of a quad has for it are
// together, 16 bytes, in the order gates (2q, 2q+1), ups (2q, 2q+1), gates (8+2q, 8+2q+1), ups
// (8+2q, 8+2q+1). So H goes to and from registers 16 bytes at a time. In shared memory a group is a
// box of 64 rows x 64 bytes; a sub-tile of 32 units has two.
constexpr uint32_t kBox32 = 64 * 64;  // 64 rows x 32 bf16
constexpr int kUnits = 32;            // of a sub-tile

__device__ inline uint32_t hidden_at(const Consumer& me, uint32_t box) {
  return box + me.warp * kWarpBytes<4> + staged<4>(opaque(me.lane) / 4, me.lane % 4);
}
constexpr uint32_t kEightRows = 8 * 64;  // From a lane's first row to its second; same swizzle.

// H = C rounded, A = s silu(gate) up from the rounded H. Columns 0..127 of a tile are gates,
// 128..255 the ups of the same units: a lane has both.
struct Swiglu {
  static constexpr uint32_t kStagingBytes = 3 * kBox32;  // H, H, A of 32 units
  struct Params {
    CUtensorMap h_map, a_map;  // boxes of 32 columns
    Bits16* h;                 // [R, 2 units], lane order
    Bits16* a;                 // [R, units]
    uint32_t units;            // F, a multiple of 64
    const float* score;
    const int32_t* row_slot;
  };
  const Params& p;
  Consumer me;
  RowSpan span = {};
  int unit = 0;
  RowScores score = {};

  __device__ void begin(const RowTile& tile, int row, int valid) {
    span = {row, valid};
    unit = tile.n * 128;
  }
  __device__ void fetch() { score.load(p.score, p.row_slot, span, me); }

  __device__ static uint32_t activate(uint32_t gates, uint32_t ups, float s) {
    const float a = __fmul_rn(__fmul_rn(Silu(low_bf16(gates)).value, low_bf16(ups)), s);
    const float b = __fmul_rn(__fmul_rn(Silu(high_bf16(gates)).value, high_bf16(ups)), s);
    return pack_bf16(a, b);
  }

  // H of a group of 16 units for the lane's two rows.
  struct Group {
    uint4 low, high;
  };
  // H of blocks 0 and 1 at `gate`, whose ups are 64 accumulators further, and A of both rows.
  __device__ static Group group(const float* gate, const RowScores& s, uint32_t* a_low,
                                uint32_t* a_high) {
    uint32_t low[4], high[4];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const float* g = gate + 4 * b;
      const float* u = g + 64;
      low[2 * b] = pack_bf16(g[0], g[1]);
      low[2 * b + 1] = pack_bf16(u[0], u[1]);
      high[2 * b] = pack_bf16(g[2], g[3]);
      high[2 * b + 1] = pack_bf16(u[2], u[3]);
      a_low[b] = activate(low[2 * b], low[2 * b + 1], s.low);
      a_high[b] = activate(high[2 * b], high[2 * b + 1], s.high);
    }
    return {make_uint4(low[0], low[1], low[2], low[3]),
            make_uint4(high[0], high[1], high[2], high[3])};
  }

  // A sub-tile is made in registers while the one before it leaves shared memory.
  __device__ void end(const Accumulator& acc) {
    const Output<true> h_out{&p.h_map, p.h, 2 * p.units};
    const Output<> a_out{&p.a_map, p.a, p.units};
    const uint32_t to = me.staging;
#pragma unroll
    for (int c = 0; c < 128 / kUnits; ++c) {
      const int at = unit + kUnits * c;
      if (at >= static_cast<int>(p.units)) return;
      Chunk<4> chunk;
      Group h[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        h[i] = group(acc + 16 * c + 8 * i, score, chunk.low + 2 * i, chunk.high + 2 * i);
      }
      if (me.leads()) store_wait_read<0>();
      me.sync();
      const uint32_t h_at = hidden_at(me, to);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_shared16(h_at + i * kBox32, h[i].low);
        store_shared16(h_at + i * kBox32 + kEightRows, h[i].high);
      }
      stage(to + 2 * kBox32 + me.warp * kWarpBytes<4>, opaque(me.lane), chunk);
      async_proxy_fence();
      me.sync();
      h_out.store<4>(me, to, span.row, 2 * at, span.valid);
      h_out.store<4>(me, to + kBox32, span.row, 2 * at + 32, span.valid);
      a_out.store<4>(me, to + 2 * kBox32, span.row, at, span.valid);
      if (me.leads()) store_commit();
    }
  }
};

// C is G = dO W2. With A0 = silu(gate) up: dS partial = sum over the tile's units of G A0, A = s
// A0, d(up) = s G silu(gate), d(gate) = s G up silu'(gate). H comes by the copy engine, four
// sub-tiles ahead, the first ones under the product; dH takes the place of the H it was made from.
struct SwigluBackward {
  static constexpr int kBuffers = 4;
  static constexpr uint32_t kBufferBytes = 2 * kBox32;
  static constexpr uint32_t kStagingBytes = kBuffers * kBufferBytes + kBox32;  // and A of 32 units
  struct Params {
    CUtensorMap h_map, grad_h_map, a_map;  // boxes of 32 columns
    Bits16* grad_h;                        // [R, 2 units], gates then ups
    Bits16* a;                             // [R, units]
    float* partial;                        // [R, tiles]: sum of G A0 over a tile's units
    uint32_t units;
    int tiles;
    const float* score;
    const int32_t* row_slot;
  };
  const Params& p;
  Consumer me;
  RowSpan span = {};
  int tile_n = 0;
  uint32_t phases = 0;  // Bit i: the phase of buffer i's barrier.
  RowScores score = {};

  __device__ int unit() const { return tile_n * kTileN; }
  __device__ bool exists(int c) const { return unit() + kUnits * c < static_cast<int>(p.units); }
  __device__ uint32_t buffer(int c) const { return me.staging + c % kBuffers * kBufferBytes; }
  __device__ uint32_t barrier(int c) const { return me.barriers + c % kBuffers * 8; }

  // The leader's: H of sub-tile c into its buffer.
  __device__ void load(int c) const {
    const int column = 2 * (unit() + kUnits * c);
    barrier_expect(barrier(c), kBufferBytes);
    copy_box_2d(buffer(c), &p.h_map, column, span.row, barrier(c));
    copy_box_2d(buffer(c) + kBox32, &p.h_map, column + 32, span.row, barrier(c));
  }

  __device__ void begin(const RowTile& tile, int row, int valid) {
    span = {row, valid};
    tile_n = tile.n;
  }

  __device__ void fetch() {
    if (span.valid <= 0) return;
    score.load(p.score, p.row_slot, span, me);
    if (!me.leads()) return;
    store_wait_read<0>();
    for (int c = 0; c < kTileN / kUnits && exists(c); ++c) {
      if (c < kBuffers) {
        load(c);
      } else {
        prefetch_box_2d(&p.h_map, 2 * (unit() + kUnits * c), span.row);
        prefetch_box_2d(&p.h_map, 2 * (unit() + kUnits * c) + 32, span.row);
      }
    }
  }

  // Gradients of one unit pair of one row, words of bf16; and G . A0.
  struct Derivative {
    uint32_t d_gate, d_up, a;
    float dot;
  };
  __device__ static Derivative differentiate(uint32_t gates, uint32_t ups, float s,
                                             const float* g) {
    const float up0 = low_bf16(ups), up1 = high_bf16(ups);
    const Silu act0(low_bf16(gates)), act1(high_bf16(gates));
    const float a0 = __fmul_rn(act0.value, up0), a1 = __fmul_rn(act1.value, up1);
    const float sg0 = s * g[0], sg1 = s * g[1];
    return {.d_gate = pack_bf16(sg0 * up0 * act0.slope(), sg1 * up1 * act1.slope()),
            .d_up = pack_bf16(sg0 * act0.value, sg1 * act1.value),
            .a = pack_bf16(__fmul_rn(a0, s), __fmul_rn(a1, s)),
            .dot = g[0] * a0 + g[1] * a1};
  }

  struct Out {
    Chunk<4> d_gate, d_up, a;
    float dot_low = 0, dot_high = 0;  // sums of G A0
  };

  // Block b of a sub-tile, eight units of the lane's two rows.
  __device__ void block(uint2 low, uint2 high, const float* g, int b, Out& out) const {
    const Derivative l = differentiate(low.x, low.y, score.low, g);
    const Derivative h = differentiate(high.x, high.y, score.high, g + 2);
    out.d_gate.low[b] = l.d_gate, out.d_up.low[b] = l.d_up, out.a.low[b] = l.a;
    out.d_gate.high[b] = h.d_gate, out.d_up.high[b] = h.d_up, out.a.high[b] = h.a;
    out.dot_low += l.dot, out.dot_high += h.dot;
  }

  // 32 units of G, that is four blocks of the accumulator, with H from the lane's place in a
  // buffer, whose second box is kNextBox further.
  template <uint32_t kNextBox = kBox32>
  __device__ void sub_tile(uint32_t h_at, const float* g, Out& out) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 low = load_shared16(h_at + i * kNextBox);
      const uint4 high = load_shared16(h_at + i * kNextBox + kEightRows);
      block(make_uint2(low.x, low.y), make_uint2(high.x, high.y), g + 8 * i, 2 * i, out);
      block(make_uint2(low.z, low.w), make_uint2(high.z, high.w), g + 8 * i + 4, 2 * i + 1, out);
    }
  }

  __device__ void store(const Out& out, int c) const {
    const Output<> grad_h{&p.grad_h_map, p.grad_h, 2 * p.units}, a{&p.a_map, p.a, p.units};
    const uint32_t to = buffer(c), a_to = me.staging + kBuffers * kBufferBytes;
    const int lane = opaque(me.lane), at = unit() + kUnits * c;
    const uint32_t of_warp = me.warp * kWarpBytes<4>;
    stage(to + of_warp, lane, out.d_gate);
    stage(to + kBox32 + of_warp, lane, out.d_up);
    stage(a_to + of_warp, lane, out.a);
    async_proxy_fence();
    me.sync();
    grad_h.store<4>(me, to, span.row, at, span.valid);
    grad_h.store<4>(me, to + kBox32, span.row, at + static_cast<int>(p.units), span.valid);
    a.store<4>(me, a_to, span.row, at, span.valid);
    if (me.leads()) store_commit();
  }

  __device__ void end(const Accumulator& acc) {
    float sum_low = 0, sum_high = 0;
#pragma unroll
    for (int c = 0; c < kTileN / kUnits; ++c) {
      if (!exists(c)) break;
      barrier_wait(barrier(c), phases >> c % kBuffers & 1);
      phases ^= 1u << c % kBuffers;
      Out out;
      sub_tile(hidden_at(me, buffer(c)), acc + 16 * c, out);
      sum_low += out.dot_low, sum_high += out.dot_high;
      if (me.leads()) store_wait_read<0>();
      me.sync();  // All have read H; the last sub-tile's buffer and that of A are free.
      if (me.leads() && c > 0 && c + 3 < kTileN / kUnits && exists(c + 3)) load(c + 3);
      store(out, c);
    }
    me.sync();  // The next tile's H may come when all have stored.
    store_sums(sum_low, sum_high);
  }

  __device__ void store_sums(float low, float high) const {
    for (int step = 1; step < 4; step *= 2) {
      low += __shfl_xor_sync(0xffffffffu, low, step);
      high += __shfl_xor_sync(0xffffffffu, high, step);
    }
    const int row = 16 * me.warp + me.lane / 4;
    float* to = p.partial + int64_t{span.row + row} * p.tiles + tile_n;
    if (me.lane % 4 == 0 && row < span.valid) *to = low;
    if (me.lane % 4 == 0 && row + 8 < span.valid) to[8 * p.tiles] = high;
  }
};

}  // namespace troupe::sm90
