// The epilogue of `hidden` that rounds to 8 bits what the next products read, in both orders: dH
// along rows, with a scale for each row and 128 units, and dH and A as columns of 128 rows, with a
// scale for 128 x 128. A block's tile is 128 rows of one expert, and one of its two halves has 128
// units of them: all that a scale is taken over is in the registers of the block's two consumers.
#pragma once

#include "troupe/kernels/moe_sm90/rows_fp8.cuh"
#include "troupe/kernels/moe_sm90/swiglu_fp8.cuh"

namespace troupe::sm90 {

struct SwigluBackwardTiles {
  // Shared memory, of both consumers together: four places of two boxes. H of 128 rows x 32 units
  // comes into each place, under the product for the first half of the units. What is made of it
  // stays where it was or leaves through it, since registers hold dH alone beside the accumulators:
  // A in the first box; in the second a warp's rows of dH in 8 bits, then columns of dH. At last
  // columns of A go through two first boxes.
  static constexpr int kPlaces = 4;
  static constexpr uint32_t kPlace = kTileM * 128;
  static constexpr uint32_t kBox = kPlace / 2;  // 128 rows x 64 bytes of H; 64 columns of 128 bytes
  static constexpr int kWarps = 4 * kConsumers;
  static constexpr uint32_t kTopsAt = kPlaces * kPlace;  // maxima: three of each warp
  static constexpr uint32_t kStagingBytes = (kTopsAt + 128) / kConsumers;
  static constexpr int kHalves = 2, kHalf = kTileN / kHalves;  // units

  struct Params {
    CUtensorMap h_map;                      // boxes of 32 columns x 128 rows
    CUtensorMap grad_h_map;                 // boxes of 128 bytes x 8 rows
    CUtensorMap grad_h_columns, a_columns;  // boxes of 128 bytes x 64 columns
    uint8_t* grad_h;                        // [R, 2 units]
    float* grad_h_scales;                   // [2 units / 128, R]
    float* grad_h_column_scales;            // [blocks, 2 units / 128]
    float* a_column_scales;                 // [blocks, units / 128]
    float* partial;                         // [R, tiles]: sum of G A0 over a tile's units
    uint32_t units;                         // F, a multiple of 128
    int64_t rows;                           // R
    int tiles;
    const float* score;
    const int32_t* row_slot;
    const int32_t* row_src;
    const float *x_scales, *grad_out_scales;  // factors of the columns of dH and of A
  };
  const Params& p;
  Consumer me;
  RowTile tile = {};
  uint32_t phase = 0;  // of all four barriers

  __device__ int warp() const { return 4 * me.index + me.warp; }
  __device__ int row() const { return tile.row + 16 * warp(); }
  __device__ int valid() const { return tile.valid - 16 * warp(); }
  __device__ uint32_t base() const { return me.staging - me.index * kStagingBytes; }
  __device__ uint32_t place(int i) const { return base() + i % kPlaces * kPlace; }
  __device__ uint32_t barrier(int i) const {
    return me.barriers + (i % kPlaces - me.index * kPlaces) * 8;
  }
  __device__ bool leads() const { return me.index == 0 && me.leads(); }
  __device__ static void sync() { named_sync<4>(kConsumers * kWarpgroup); }
  __device__ int unit(int half) const { return tile.n * kTileN + kHalf * half; }
  __device__ bool exists(int half) const { return unit(half) < static_cast<int>(p.units); }

  // The leader's: H of 32 units of a half into its place; a half begins one place further.
  __device__ void load(int half, int c) const {
    const int column = 2 * (unit(half) + kUnits * c);
    const uint32_t to = place(half + c), bar = barrier(half + c);
    barrier_expect(bar, kPlace);
    copy_box_2d(to, &p.h_map, column, tile.row, bar);
    copy_box_2d(to + kBox, &p.h_map, column + 32, tile.row, bar);
  }

  __device__ void begin(const RowTile& next, int, int) { tile = next; }

  __device__ void fetch() {
    if (tile.valid <= 0) return;
    Scores(*this), Factors(*this, p.x_scales);  // Into the cache.
    if (!leads()) return;
    store_wait_read<0>();
    for (int c = 0; c < kPlaces; ++c) load(0, c);
    for (int c = 0; c < kPlaces && exists(1); ++c) {
      prefetch_box_2d(&p.h_map, 2 * (unit(1) + kUnits * c), tile.row);
      prefetch_box_2d(&p.h_map, 2 * (unit(1) + kUnits * c) + 32, tile.row);
    }
  }

  // Factors of this lane's two rows, by their tokens; 1 without a token, 0 without a row.
  struct Factors {
    float low, high;

    __device__ Factors(const SwigluBackwardTiles& e, const float* of) {
      const int r = opaque(e.me.lane) / 4;
      low = one(e, of, r), high = one(e, of, r + 8);
    }
    __device__ static float one(const SwigluBackwardTiles& e, const float* of, int r) {
      if (r >= e.valid()) return 0.0f;
      const int source = load_early(e.p.row_src + e.row() + r);
      return source < 0 ? 1.0f : load_early(of + source);
    }
    // What a value is multiplied by before it is rounded; 0 where there is no row.
    __device__ static float by(float factor, const Fp8Scale& s) {
      return factor == 0 ? 0.0f : factor * s.inverse;
    }
  };

  // The routing weights of this lane's two rows, as RowScores; read twice, as Factors are: under the
  // product registers are short.
  struct Scores {
    float low, high;

    __device__ explicit Scores(const SwigluBackwardTiles& e) {
      const int r = opaque(e.me.lane) / 4;
      low = one(e, r), high = one(e, r + 8);
    }
    __device__ static float one(const SwigluBackwardTiles& e, int r) {
      const int slot = r < e.valid() ? load_early(e.p.row_slot + e.row() + r) : -1;
      return slot < 0 ? 0.0f : e.p.score == nullptr ? 1.0f : load_early(e.p.score + slot);
    }
  };

  // 128 units of the lane's two rows: pair j has units 8 j + 2 (lane % 4) and the next.
  struct Pairs {
    uint32_t low[16], high[16];
  };
  struct Made {
    Pairs gate, up;
    uint32_t a_low = 0, a_high = 0;  // `larger` of A
  };

  // Where this lane finds its H of sub-tile c: 16 bytes of each of its rows in both boxes, which no
  // other lane reads or writes.
  __device__ uint32_t hidden_at(int half, int c) const {
    const int lane = opaque(me.lane);
    return place(half + c) + warp() * kWarpBytes<4> + staged<4>(lane / 4, lane % 4);
  }

  // From the accumulators of half 0 and H of `half`. Rows that do not exist have the H of others. A
  // stays in shared memory, in the first box, where the lane's H was.
  __device__ void differentiate(const Accumulator& acc, int half, Made& m, float& sum_low,
                                float& sum_high) const {
    const Scores score(*this);
    const uint32_t low_there = opaque(me.lane) / 4 < valid() ? ~0u : 0u;
    const uint32_t high_there = opaque(me.lane) / 4 + 8 < valid() ? ~0u : 0u;
#pragma unroll
    for (int c = 0; c < kPlaces; ++c) {
      barrier_wait(barrier(half + c), phase);
      const uint32_t at = hidden_at(half, c);
      float dot_low = 0, dot_high = 0;
      uint32_t a_low[4], a_high[4];
      const auto block = [&](uint32_t gate_low, uint32_t up_low, uint32_t gate_high,
                             uint32_t up_high, int i) {
        const int b = 4 * c + i;
        const auto l = SwigluBackward::differentiate(gate_low & low_there, up_low & low_there,
                                                     score.low, acc + 4 * b);
        const auto h = SwigluBackward::differentiate(gate_high & high_there, up_high & high_there,
                                                     score.high, acc + 4 * b + 2);
        m.gate.low[b] = l.d_gate, m.up.low[b] = l.d_up, a_low[i] = l.a;
        m.gate.high[b] = h.d_gate, m.up.high[b] = h.d_up, a_high[i] = h.a;
        m.a_low = larger(m.a_low, l.a), m.a_high = larger(m.a_high, h.a);
        dot_low += l.dot, dot_high += h.dot;
      };
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 low = load_shared16(at + i * kBox);
        const uint4 high = load_shared16(at + i * kBox + kEightRows);
        block(low.x, low.y, high.x, high.y, 2 * i);
        block(low.z, low.w, high.z, high.w, 2 * i + 1);
      }
      store_shared16(at, make_uint4(a_low[0], a_low[1], a_low[2], a_low[3]));
      store_shared16(at + kEightRows, make_uint4(a_high[0], a_high[1], a_high[2], a_high[3]));
      sum_low += dot_low, sum_high += dot_high;
    }
  }

  // A of the lane's two rows.
  __device__ void load_a(int half, Pairs& a) const {
#pragma unroll
    for (int c = 0; c < kPlaces; ++c) {
      const uint32_t at = hidden_at(half, c);
      const uint4 low = load_shared16(at), high = load_shared16(at + kEightRows);
      a.low[4 * c] = low.x, a.low[4 * c + 1] = low.y;
      a.low[4 * c + 2] = low.z, a.low[4 * c + 3] = low.w;
      a.high[4 * c] = high.x, a.high[4 * c + 1] = high.y;
      a.high[4 * c + 2] = high.z, a.high[4 * c + 3] = high.w;
    }
  }

  // max |x| of pairs, each half of a word for itself; of a row's 128 values, as bits of a float, the
  // same in the four lanes that have them.
  __device__ static uint32_t larger(uint32_t top, uint32_t pair) {
    return __vmaxu2(top, pair & 0x7fff7fffu);
  }
  __device__ static uint32_t top_of_row(uint32_t top) {
    return quad_max(max(top << 16, top & 0x7fff0000u));
  }
  __device__ static uint32_t top_of(const uint32_t (&pairs)[16]) {
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) top = larger(top, pairs[j]);
    return top_of_row(top);
  }
  __device__ static void put(uint32_t address, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
  }
  // The largest of the warp's rows, each times its factor, to the other warps.
  __device__ void tell_top(int which, uint32_t low, uint32_t high, const Factors& f) const {
    const auto times = [](uint32_t top, float by) {
      return __float_as_uint(__uint_as_float(top) * by) & 0x7fffffffu;
    };
    const uint32_t top =
        __reduce_max_sync(0xffffffffu, max(times(low, f.low), times(high, f.high)));
    if (me.lane == 0) put(base() + kTopsAt + (which * kWarps + warp()) * 4, top);
  }
  __device__ Fp8Scale block_scale(int which) const {
    const uint32_t at = base() + kTopsAt + which * kWarps * 4;
    const uint4 a = load_shared16(at), b = load_shared16(at + 16);
    return fp8_scale(max(max(max(a.x, a.y), max(a.z, a.w)), max(max(b.x, b.y), max(b.z, b.w))));
  }

  // The warp's rows of 128 bytes: the first eight in the second box of place i, the others in that
  // of the next.
  __device__ uint32_t rows_at(int i) const {
    return place(i) + kBox + warp() * 8 * 128;
  }
  __device__ void stage_rows(const Pairs& v, const Fp8Scale& low, const Fp8Scale& high,
                             int i) const {
    const int lane = opaque(me.lane);
    const uint32_t first = staged<8>(lane / 4, 0) + lane % 4 * 2;
    const uint32_t to_low = rows_at(i) + first, to_high = rows_at(i + 1) + first;
#pragma unroll
    for (int j = 0; j < 16; ++j) {  // ^: staged<8>(lane / 4, j / 2)
      store_shared2((to_low ^ j / 2 << 4) + j % 2 * 8, two_bytes(v.low[j], low));
      store_shared2((to_high ^ j / 2 << 4) + j % 2 * 8, two_bytes(v.high[j], high));
      if (j % 4 == 3) __syncwarp();
    }
  }
  __device__ void store_rows(int i, int column) const {
    if (valid() >= 16) {
      if (me.lane != 0) return;
      store_box_2d(&p.grad_h_map, column / 2, row(), rows_at(i));
      store_box_2d(&p.grad_h_map, column / 2, row() + 8, rows_at(i + 1));
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int r = 4 * k + me.lane / 8, part = me.lane % 8;
      const uint4 line = load_shared16(rows_at(i + k / 2) + staged<8>(r % 8, part));
      uint8_t* const to = p.grad_h + int64_t{row() + r} * (2 * p.units) + column + 16 * part;
      if (r < valid()) *reinterpret_cast<uint4*>(to) = line;
    }
  }

  // low_bf16 and high_bf16 by another instruction: or the compiler would keep all that stage_rows
  // has unpacked, in twice the registers.
  __device__ static float first_of(uint32_t pair) {
    return __uint_as_float(__byte_perm(pair, 0, 0x1044));
  }
  __device__ static float second_of(uint32_t pair) {
    return __uint_as_float(__byte_perm(pair, 0, 0x3244));
  }

  // 128 columns of 128 bytes, of which the warp has 16, in fragment_order: 64 columns at each. Warps
  // are gathered in between, here and in stage_rows, so that the compiler does not unpack everything
  // at once.
  __device__ void stage_columns(const Pairs& v, float low, float high, uint32_t to,
                                uint32_t to_next) const {
    const int lane = opaque(me.lane), eight = lane % 8;
    const uint32_t at = lane * 128 + ((warp() ^ eight) << 4);
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t l = v.low[j + i], h = v.high[j + i];
        word[i] = e4m3_four(first_of(l) * low, first_of(h) * high, second_of(l) * low,
                            second_of(h) * high);
      }
      store_matrices_transposed((j < 8 ? to : to_next) + at + j % 8 * 8 * 128, word[0], word[1],
                                word[2], word[3]);
      __syncwarp();
    }
  }
  __device__ static void store_columns(const CUtensorMap* map, int block, int column, uint32_t from,
                                       uint32_t from_next) {
    store_box_2d(map, block * kSlotPairs, column, from);
    store_box_2d(map, block * kSlotPairs, column + 64, from_next);
  }

  __device__ void store_row_scales(const Fp8Scale& low, const Fp8Scale& high, int column) const {
    const int lane = opaque(me.lane);
    float* const to = p.grad_h_scales + column / kHalf * p.rows + row() + lane / 4;
    if (lane % 4 == 0 && lane / 4 < valid()) to[0] = low.scale;
    if (lane % 4 == 0 && lane / 4 + 8 < valid()) to[8] = high.scale;
  }

  // A scale a row; and the warp's maximum of what the columns' block is made of.
  __device__ void round_rows(const Pairs& v, const Factors& f, int which, int i, int column) const {
    const uint32_t top_low = top_of(v.low), top_high = top_of(v.high);
    tell_top(which, top_low, top_high, f);
    const Fp8Scale low = fp8_scale(top_low), high = fp8_scale(top_high);
    stage_rows(v, low, high, i);
    store_row_scales(low, high, column);
  }

  // What `half` made leaves in 8 bits.
  __device__ void round(const Made& m, int half) const {
    const int at = unit(half), ups = at + static_cast<int>(p.units);
    tell_top(2, top_of_row(m.a_low), top_of_row(m.a_high), Factors(*this, p.grad_out_scales));
    const Factors of_x(*this, p.x_scales);
    __syncwarp();  // All have read H.
    round_rows(m.gate, of_x, 0, half, at);
    round_rows(m.up, of_x, 1, half + 2, ups);
    async_proxy_fence();
    __syncwarp();
    store_rows(half, at);
    store_rows(half + 2, ups);
    if (me.lane == 0) {
      store_commit();
      store_wait_read<0>();
    }
    sync();  // Maxima are exchanged, and second boxes are free.

    const Fp8Scale gate = block_scale(0), up = block_scale(1), a = block_scale(2);
    stage_columns(m.gate, Factors::by(of_x.low, gate), Factors::by(of_x.high, gate),
                  place(half) + kBox, place(half + 1) + kBox);
    stage_columns(m.up, Factors::by(of_x.low, up), Factors::by(of_x.high, up),
                  place(half + 2) + kBox, place(half + 3) + kBox);
    Pairs act;
    load_a(half, act);
    async_proxy_fence();
    sync();  // Columns of dH are there, and first boxes free.
    const int block = tile.row / kTileM + tile.expert;  // fp8_tiles.h: P_e / 128 + p / 128
    if (leads()) {
      store_columns(&p.grad_h_columns, block, at, place(half) + kBox, place(half + 1) + kBox);
      store_columns(&p.grad_h_columns, block, ups, place(half + 2) + kBox, place(half + 3) + kBox);
      store_commit();
    }
    const Factors of_grad(*this, p.grad_out_scales);
    stage_columns(act, Factors::by(of_grad.low, a), Factors::by(of_grad.high, a), place(half),
                  place(half + 3));
    async_proxy_fence();
    sync();
    if (leads()) {
      store_columns(&p.a_columns, block, at, place(half), place(half + 3));
      store_commit();
      if (half == 0 && exists(1)) {
        store_wait_read<1>();
        load(1, 0), load(1, 1);
        store_wait_read<0>();
        load(1, 2), load(1, 3);
      }
    }
    if (me.index == 1 && me.leads()) {
      const int64_t across = p.units / kHalf;
      float* const of_block = p.grad_h_column_scales + block * 2 * across;
      of_block[at / kHalf] = gate.scale, of_block[ups / kHalf] = up.scale;
      p.a_column_scales[block * across + at / kHalf] = a.scale;
    }
  }

  // By all warps of a tile that has rows.
  __device__ void end(Accumulator& acc) {
    float sum_low = 0, sum_high = 0;
#pragma unroll 1
    for (int half = 0; half < kHalves && exists(half); ++half) {
      Made made;
      differentiate(acc, half, made, sum_low, sum_high);
      phase ^= 1;
      round(made, half);
#pragma unroll
      for (int i = 0; i < 64; ++i) acc[i] = acc[64 + i];
    }
    for (int step = 1; step < 4; step *= 2) {
      sum_low += __shfl_xor_sync(0xffffffffu, sum_low, step);
      sum_high += __shfl_xor_sync(0xffffffffu, sum_high, step);
    }
    const int r = me.lane / 4;
    float* const to = p.partial + int64_t{row() + r} * p.tiles + tile.n;
    if (me.lane % 4 == 0 && r < valid()) to[0] = sum_low;
    if (me.lane % 4 == 0 && r + 8 < valid()) to[8 * p.tiles] = sum_high;
  }
};

}  // namespace troupe::sm90
