// A finished tile on its way to memory: where it is, what is added, and how a warp's fragments
// become whole 16-byte stores.
#pragma once

#include <cstdint>

#include "troupe/kernels/device/mma_sync.cuh"
#include "troupe/kernels/device/reduce.cuh"

namespace troupe::tile {

// Lane t of a quad holds word t of four groups; afterwards it holds the four words of group t.
__device__ __forceinline__ uint4 turn_quad(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const uint32_t r01 = __shfl_xor_sync(kWholeWarp, odd ? w0 : w1, 1);
  const uint32_t r23 = __shfl_xor_sync(kWholeWarp, odd ? w2 : w3, 1);
  (odd ? w0 : w1) = r01;
  (odd ? w2 : w3) = r23;
  const uint32_t r02 = __shfl_xor_sync(kWholeWarp, upper ? w0 : w2, 2);
  const uint32_t r13 = __shfl_xor_sync(kWholeWarp, upper ? w1 : w3, 2);
  (upper ? w0 : w2) = r02;
  (upper ? w1 : w3) = r13;
  return {w0, w1, w2, w3};
}

// The sum as it is.
struct Plain {
  struct Row {};
  __device__ Row row(int) const { return {}; }
  __device__ float column(int) const { return 0; }
  __device__ static float value(Row, float /*column*/, float sum) { return sum; }
};

// A tile of the result; element (r, c) is at data[r * ld + c]. Rows from `rows` and columns from
// `cols` on are outside, and neither read nor written.
template <class T>
struct Output {
  T* data;
  int64_t ld;
  int rows, cols;
  bool vector;      // rows start at multiples of 16 bytes, and cols is a multiple of 16 bytes
  bool accumulate;  // add to what is there, before the one rounding

  __device__ bool has(int r, int c) const { return r < rows && c < cols; }

  __device__ void put(int r, int c, float v) const {
    if (!has(r, c)) return;
    T& at = data[r * ld + c];
    at = T(accumulate ? static_cast<float>(at) + v : v);
  }

  // A row of a warp's fragments: v[j] are columns c + 8 j and the next, c even. All lanes call it.
  template <int kTiles>
  __device__ __forceinline__ void put_fragments(int r, int c, float (&v)[kTiles][2]) const {
    if (!vector) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        put(r, c + 8 * j, v[j][0]);
        put(r, c + 8 * j + 1, v[j][1]);
      }
      return;
    }
    if (accumulate) add_old(r, c, v);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (has(r, c + 8 * j)) {
          *reinterpret_cast<float2*>(data + r * ld + c + 8 * j) = {v[j][0], v[j][1]};
        }
      }
    } else {
      put_turned(r, c, v);
    }
  }

 private:
  template <int kTiles>
  __device__ __forceinline__ void add_old(int r, int c, float (&v)[kTiles][2]) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (!has(r, c + 8 * j)) continue;
      const T* at = data + r * ld + c + 8 * j;
      if constexpr (sizeof(T) == 4) {
        const float2 old = *reinterpret_cast<const float2*>(at);
        v[j][0] += old.x;
        v[j][1] += old.y;
      } else {
        v[j][0] += static_cast<float>(at[0]);
        v[j][1] += static_cast<float>(at[1]);
      }
    }
  }

  // Four tiles of eight columns are 16 words over a quad: turned, each lane stores one tile.
  template <int kTiles>
  __device__ __forceinline__ void put_turned(int r, int c, const float (&v)[kTiles][2]) const {
    const int lane_in_quad = static_cast<int>(threadIdx.x % 4);
    const int first = c - 2 * lane_in_quad + 8 * lane_in_quad;
#pragma unroll
    for (int j = 0; j < kTiles; j += 4) {
      const uint4 words = turn_quad(
          sm80::pack<T>(v[j][0], v[j][1]), sm80::pack<T>(v[j + 1][0], v[j + 1][1]),
          sm80::pack<T>(v[j + 2][0], v[j + 2][1]), sm80::pack<T>(v[j + 3][0], v[j + 3][1]));
      if (has(r, first + 8 * j)) {
        *reinterpret_cast<uint4*>(data + r * ld + first + 8 * j) = words;
      }
    }
  }
};

}  // namespace troupe::tile
