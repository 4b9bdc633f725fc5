// Storing a tile of a weight gradient: 64 rows m x 256 columns n a consumer warpgroup.
// Plain: out[e][m][n]. Transposed: out[e][n][m]. bf16 goes through shared memory so that stores
// write whole lines; fp32 is stored, or added to what is there, straight from the accumulators.
#pragma once

#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"

namespace troupe::sm90 {

enum class WeightStore { kBf16, kF32, kAddF32 };

// Chunks of 64 m x kColumns n in bf16, through shared memory to the gradient. The staged rows are
// rows of the output.
template <bool kTransposed>
struct WeightChunks {
  static constexpr int kBuffers = 3;
  static constexpr int kColumns = 32;  // 32 or 64
  static constexpr uint32_t kBufferBytes = 64 * kColumns * 2;
  static constexpr uint32_t kStagingBytes = kBuffers * kBufferBytes;
  uint32_t buffer = 0;

  // Where the next chunk is put.
  __device__ uint32_t at(const Consumer& me) const { return me.staging + buffer * kBufferBytes; }

  // Sends off the chunk that was put there. `map`: boxes of 64 m x kColumns n.
  template <class Params>
  __device__ void store(const Params& p, const Consumer& me, int expert, int m, int n) {
    const uint32_t from = at(me);
    async_proxy_fence();
    if (me.leads()) store_wait_read<kBuffers - 2>();  // The next chunk's buffer is free, then.
    me.sync();
    if (me.leads()) {
      if constexpr (kTransposed) {
        store_box_2d_streaming(&p.map, m, expert * p.columns_n + n, from);
      } else {
        store_box_2d_streaming(&p.map, n, expert * p.columns_m + m, from);
      }
      store_commit();
    }
    buffer = buffer == kBuffers - 1 ? 0 : buffer + 1;
  }
};

template <WeightStore kStore, bool kTransposed>
struct StoreWeight {
  using Chunks = WeightChunks<kTransposed>;
  static constexpr int kColumns = Chunks::kColumns;
  static constexpr uint32_t kStagingBytes = Chunks::kStagingBytes;
  struct Params {
    CUtensorMap map;  // unused for fp32
    void* out;
    int columns_m, columns_n;  // multiples of 64
  };
  const Params& p;
  Consumer me;
  Chunks chunks = {};

  __device__ void end(const Accumulator& acc, int expert, int m, int n, bool empty) {
    if constexpr (kStore == WeightStore::kBf16) {
#pragma unroll
      for (int c = 0; c < kTileN / kColumns; ++c) {
        if (n + kColumns * c >= p.columns_n) break;
        bf16_chunk(acc + kColumns / 2 * c, expert, m, n + kColumns * c);
      }
    } else {
      if (kStore == WeightStore::kAddF32 && empty) return;
      const int64_t at = int64_t{expert} * p.columns_m * p.columns_n;
      float_tile(acc, static_cast<float*>(p.out) + at, m, n);
    }
  }

  // 64 x kColumns of m, n.
  __device__ void bf16_chunk(const float* acc, int expert, int m, int n) {
    const int lane = opaque(me.lane);
    const int matrix = lane / 8, i = lane % 8;
    const uint32_t to = chunks.at(me);
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const float* d = acc + 4 * (j + b / 2) + 2 * (b % 2);
        words[b] = pack_bf16(d[0], d[1]);
      }
      const int block = j + matrix / 2;            // of 8 columns
      const int octet = 2 * me.warp + matrix % 2;  // of 8 rows
      const uint32_t at = to + (kTransposed ? staged<8>(8 * block + i, octet)
                                            : staged<kColumns / 8>(8 * octet + i, block));
      if constexpr (kTransposed) {
        store_matrices_transposed(at, words[0], words[1], words[2], words[3]);
      } else {
        store_matrices(at, words[0], words[1], words[2], words[3]);
      }
    }
    chunks.store(p, me, expert, m, n);
  }

  __device__ static void put(float* to, float value) {
    *to = kStore == WeightStore::kAddF32 ? *to + value : value;
  }

  __device__ void float_tile(const Accumulator& acc, float* out, int m, int n) const {
    const int64_t ld = kTransposed ? p.columns_m : p.columns_n;
    const int64_t down = kTransposed ? 1 : ld, right = kTransposed ? ld : 1;
    float* corner = out + (m + 16 * me.warp + me.lane / 4) * down + (n + me.lane % 4 * 2) * right;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      if (n + 8 * j >= p.columns_n) break;
      float* to = corner + 8 * j * right;
      put(to, acc[4 * j]);
      put(to + right, acc[4 * j + 1]);
      put(to + 8 * down, acc[4 * j + 2]);
      put(to + 8 * down + right, acc[4 * j + 3]);
    }
  }
};

}  // namespace troupe::sm90
