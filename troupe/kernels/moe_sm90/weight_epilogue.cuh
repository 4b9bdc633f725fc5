// Storing a tile of a weight gradient: 64 rows m x 256 columns n a consumer warpgroup.
// Plain: out[e][m][n]. Transposed: out[e][n][m]. bf16 goes through shared memory so that stores
// write whole lines; fp32 is stored, or added to what is there, straight from the accumulators.
#pragma once

#include "troupe/kernels/device/matrix_store.cuh"
#include "troupe/kernels/moe_sm90/work.cuh"

namespace troupe::sm90 {

enum class WeightStore { kBf16, kF32, kAddF32 };

template <WeightStore kStore, bool kTransposed>
struct StoreWeight {
  struct Params {
    void* out;
    int columns_m, columns_n;  // multiples of 64
  };
  const Params& p;
  uint32_t staging;  // of the warpgroup: 8 KB
  int consumer;
  int warp;
  int lane;

  __device__ void end(const Accumulator& acc, int expert, int m, int n, bool empty) const {
    const int64_t at = int64_t{expert} * p.columns_m * p.columns_n;
    if constexpr (kStore == WeightStore::kBf16) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (n + 64 * c >= p.columns_n) break;
        bf16_chunk(acc + 32 * c, static_cast<uint16_t*>(p.out) + at, m, n + 64 * c);
      }
    } else {
      if (kStore == WeightStore::kAddF32 && empty) return;
      float_tile(acc, static_cast<float*>(p.out) + at, m, n);
    }
  }

  // 64 x 64 of m, n. The warpgroup's 64 staged rows are rows of the output.
  __device__ void bf16_chunk(const float* acc, uint16_t* out, int m, int n) const {
    const int matrix = lane / 8, i = lane % 8;
    named_sync(1 + consumer, kWarpgroup);  // The last chunk has been read.
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const float* d = acc + 4 * (j + b / 2) + 2 * (b % 2);
        words[b] = pack_bf16(d[0], d[1]);
      }
      const int block = j + matrix / 2;                       // of 8 columns
      const int octet = 2 * warp + matrix % 2;                // of 8 rows
      const int row = 8 * (kTransposed ? block : octet) + i;  // staged
      const int part = kTransposed ? octet : block;
      const uint32_t to = staging + row * 128 + ((part ^ i) << 4);
      if constexpr (kTransposed) {
        store_matrices_transposed(to, words[0], words[1], words[2], words[3]);
      } else {
        store_matrices(to, words[0], words[1], words[2], words[3]);
      }
    }
    named_sync(1 + consumer, kWarpgroup);
    const int64_t ld = kTransposed ? p.columns_m : p.columns_n;
    uint16_t* corner = out + (kTransposed ? n * ld + m : m * ld + n);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = 16 * k + 4 * warp + lane / 8, part = lane % 8;
      const uint4 line = load_shared16(staging + row * 128 + ((part ^ (row & 7)) << 4));
      *reinterpret_cast<uint4*>(corner + row * ld + part * 8) = line;
    }
  }

  __device__ static void put(float* to, float value) {
    *to = kStore == WeightStore::kAddF32 ? *to + value : value;
  }

  __device__ void float_tile(const Accumulator& acc, float* out, int m, int n) const {
    const int64_t ld = kTransposed ? p.columns_m : p.columns_n;
    const int64_t down = kTransposed ? 1 : ld, right = kTransposed ? ld : 1;
    float* corner = out + (m + 16 * warp + lane / 4) * down + (n + lane % 4 * 2) * right;
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
