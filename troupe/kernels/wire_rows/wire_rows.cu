#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/fp8_scale.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/wire_rows/wire_rows.h"
#include "troupe/kernels/wire_rows/wire_rows_rule.h"

namespace troupe {
namespace {

constexpr int kThreads = 256, kRows = kThreads / kWarpLanes;
constexpr int kTurns = 4;  // loads of a lane before its first store; those of a warp are neighbors

// The q of kN neighbors, the first in the lowest byte.
template <int kN>
struct Bytes {
  uint32_t words[(kN + 3) / 4];
};

// Rows of eight elements a lane may begin on 4 bytes: `wide` says that all begin on 8.
template <int kN>
__device__ __forceinline__ Bytes<kN> load_bytes(const uint8_t* from, bool wide) {
  if constexpr (kN == 1) {
    return {*from};
  } else {
    Bytes<kN> out;
    const auto* words = reinterpret_cast<const uint32_t*>(from);
    constexpr int kWords = kN / 4;
    if (wide) {
      const auto pack = load_pack<kWords>(words);
      for (int w = 0; w < kWords; ++w) out.words[w] = pack.v[w];
    } else {
      for (int w = 0; w < kWords; ++w) out.words[w] = words[w];
    }
    return out;
  }
}

template <int kN>
__device__ __forceinline__ void store_bytes(uint8_t* to, const Bytes<kN>& bytes, bool wide) {
  if constexpr (kN == 1) {
    *to = static_cast<uint8_t>(bytes.words[0]);
  } else {
    auto* words = reinterpret_cast<uint32_t*>(to);
    constexpr int kWords = kN / 4;
    if (wide) {
      Pack<uint32_t, kWords> pack;
      for (int w = 0; w < kWords; ++w) pack.v[w] = bytes.words[w];
      store_pack(words, pack);
    } else {
      for (int w = 0; w < kWords; ++w) words[w] = bytes.words[w];
    }
  }
}

// Over the lanes of one group.
template <int kLanes>
__device__ __forceinline__ uint32_t group_top(uint32_t top) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    top = max(top, __shfl_xor_sync(kWholeWarp, top, offset));
  }
  return top;
}

template <class T, int kN>
__device__ __forceinline__ uint32_t top_of(const Pack<T, kN>& x) {
  uint32_t top = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    top = max(top, __float_as_uint(static_cast<float>(x.v[j])) & 0x7fffffffu);
  }
  return top;
}

// The lowest bytes of q(0) to q(kN - 1).
template <int kN, class Q>
__device__ __forceinline__ Bytes<kN> lowest_bytes(const Q& q) {
  Bytes<kN> out;
  if constexpr (kN == 1) {
    out.words[0] = q(0);
  } else {
#pragma unroll
    for (int j = 0; j < kN; j += 4) {  // those of four, side by side
      const uint32_t low = __byte_perm(q(j), q(j + 1), 0x0040);
      const uint32_t high = __byte_perm(q(j + 2), q(j + 3), 0x0040);
      out.words[j / 4] = __byte_perm(low, high, 0x5410);
    }
  }
  return out;
}

// One warp a row, sixteen bytes of it a lane and turn (kN = 1 where rows are not aligned); the
// lanes of a group find its largest element together. x is read and the bytes are written once, the
// scales of a row with a NaN twice. Bound by memory.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    pack_rows_kernel(Mat<const T> x, const int64_t* index, Mat<uint8_t> packed, WireRow row,
                     bool wide) {
  constexpr int kLanes = static_cast<int>(kWireGroup) / kN, kStep = kWarpLanes * kN;
  const int64_t r = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarpLanes;
  if (r >= packed.rows) return;  // whole warps
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const T* from = x.row(index == nullptr ? r : index[r]);
  uint8_t* to = packed.row(r);
  auto* scales = reinterpret_cast<uint16_t*>(to + row.scales_at);
  bool finite = true;
  for (int64_t begin = 0; begin < x.cols; begin += kTurns * kStep) {
    Pack<T, kN> in[kTurns];
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      const int64_t i = begin + p * kStep + lane * kN;
      in[p] = i < x.cols ? load_pack<kN>(from + i) : Pack<T, kN>{};
    }
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      if (begin + p * kStep >= x.cols) break;  // whole warps: all lanes meet in the shuffles
      const int64_t i = begin + p * kStep + lane * kN;
      const WireScale s = wire_scale(group_top<kLanes>(top_of(in[p])));
      finite = finite && s.keep != 0;
      if (i >= x.cols) continue;
      const auto q = [&](int j) { return wire_bits(static_cast<float>(in[p].v[j]), s); };
      store_bytes(to + i, lowest_bytes<kN>(q), wide);
      if (lane % kLanes == 0) scales[i / kWireGroup] = s.code;
    }
  }
  if (!__all_sync(kWholeWarp, finite)) {
    __syncwarp();  // Lanes write over what others wrote.
    for (int64_t g = lane; g < row.groups; g += kWarpLanes) scales[g] = kWireNan;
  }
  const int64_t end = row.scales_at + 2 * row.groups;
  if (x.cols + lane < row.scales_at) to[x.cols + lane] = 0;  // less than 4 bytes
  if (end + lane < row.bytes) to[end + lane] = 0;
}

// One warp a row, sixteen bytes of it a lane and turn.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    unpack_rows_kernel(Mat<const uint8_t> packed, Mat<T> out, int64_t scales_at, bool wide) {
  constexpr int kStep = kWarpLanes * kN;
  const int64_t r = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarpLanes;
  if (r >= out.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const uint8_t* from = packed.row(r);
  const auto* scales = reinterpret_cast<const uint16_t*>(from + scales_at);
  T* to = out.row(r);
  for (int64_t begin = 0; begin < out.cols; begin += kTurns * kStep) {
    Bytes<kN> in[kTurns];
    uint16_t codes[kTurns];
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      const int64_t i = begin + p * kStep + lane * kN;
      if (i >= out.cols) break;
      in[p] = load_bytes<kN>(from + i, wide);
      codes[p] = scales[i / kWireGroup];
    }
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      const int64_t i = begin + p * kStep + lane * kN;
      if (i >= out.cols) break;
      const float scale = wire_scale_of(codes[p]);
      Pack<T, kN> pack;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const auto q = static_cast<int8_t>(in[p].words[j / 4] >> (8 * (j % 4)));
        pack.v[j] = static_cast<T>(static_cast<float>(q) * scale);
      }
      store_pack(to + i, pack);
    }
  }
}

// One warp a row, which reads x twice, the second time from the cache: first for the largest
// element, then for the bytes. Bound by memory.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    pack_e4m3_rows_kernel(Mat<const T> x, const int64_t* index, Mat<uint8_t> packed, WireRow row,
                          bool wide) {
  constexpr int kStep = kWarpLanes * kN;
  const int64_t r = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarpLanes;
  if (r >= packed.rows) return;  // whole warps
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const T* from = x.row(index == nullptr ? r : index[r]);
  uint8_t* to = packed.row(r);
  uint32_t top = 0;
#pragma unroll 4
  for (int64_t i = lane * kN; i < x.cols; i += kStep) {
    top = max(top, top_of(load_pack<kN>(from + i)));
  }
  const Fp8Scale s = fp8_scale(group_top<kWarpLanes>(top));
#pragma unroll 4
  for (int64_t i = lane * kN; i < x.cols; i += kStep) {
    const auto in = load_pack<kN>(from + i);
    const auto q = [&](int j) { return fp8_byte(static_cast<float>(in.v[j]), s); };
    store_bytes(to + i, lowest_bytes<kN>(q), wide);
  }
  const int64_t end = row.scales_at + static_cast<int64_t>(sizeof(float));
  if (x.cols + lane < row.scales_at) to[x.cols + lane] = 0;  // less than 4 bytes
  if (end + lane < row.bytes) to[end + lane] = 0;            // less than 16
  if (lane == 0) *reinterpret_cast<float*>(to + row.scales_at) = s.scale;
}

// One warp a row, as above; the packed row is read once.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    unpack_e4m3_rows_kernel(Mat<const uint8_t> packed, Mat<T> out, int64_t scale_at, bool wide) {
  constexpr int kStep = kWarpLanes * kN;
  const int64_t r = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarpLanes;
  if (r >= out.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const uint8_t* from = packed.row(r);
  const float scale = *reinterpret_cast<const float*>(from + scale_at);
  T* to = out.row(r);
#pragma unroll 4
  for (int64_t i = lane * kN; i < out.cols; i += kStep) {
    const Bytes<kN> in = load_bytes<kN>(from + i, wide);
    Pack<T, kN> pack;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const uint32_t byte = (in.words[j / 4] >> (8 * (j % 4))) & 0xffu;
      pack.v[j] = static_cast<T>(E4M3::widen(byte) * scale);
    }
    store_pack(to + i, pack);
  }
}

unsigned blocks_for(int64_t rows) {
  const int64_t blocks = ceil_div(rows, int64_t{kRows});
  TROUPE_CHECK(blocks <= 0x7fffffff, "rows", rows);
  return static_cast<unsigned>(blocks);
}

// The lanes' parts of packed rows begin on kN bytes.
template <int kN>
bool is_wide(const void* packed, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(packed) % kN == 0 && bytes % kN == 0;
}

template <class T>
bool in_packs(const MatRef& x) {
  return x.cols % kPackOf<T> == 0 && rows_are_packed(x);
}

template <class T, int kN>
void launch(const PackRows& a, cudaStream_t stream) {
  const Mat<uint8_t>& p = a.packed;
  const auto kernel =
      a.code == WireCode::kE4m3 ? pack_e4m3_rows_kernel<T, kN> : pack_rows_kernel<T, kN>;
  kernel<<<blocks_for(p.rows), kThreads, 0, stream>>>(
      a.x.as<T>(), a.index, p, wire_row(a.x.cols, a.code), is_wide<kN>(p.data, p.ld));
  TROUPE_LAUNCH_CHECK(stream);
}

template <class T, int kN>
void launch(const UnpackRows& a, cudaStream_t stream) {
  const Mat<const uint8_t>& p = a.packed;
  const auto kernel =
      a.code == WireCode::kE4m3 ? unpack_e4m3_rows_kernel<T, kN> : unpack_rows_kernel<T, kN>;
  kernel<<<blocks_for(p.rows), kThreads, 0, stream>>>(
      p, a.out.as<T>(), wire_row(a.out.cols, a.code).scales_at, is_wide<kN>(p.data, p.ld));
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace

void pack_rows_cuda(const PackRows& a, cudaStream_t stream) {
  validate(a);
  if (a.packed.rows * a.packed.cols == 0) return;
  dispatch_float(a.x.dtype, [&]<class T>() {
    in_packs<T>(a.x) ? launch<T, kPackOf<T>>(a, stream) : launch<T, 1>(a, stream);
  });
}

void unpack_rows_cuda(const UnpackRows& a, cudaStream_t stream) {
  validate(a);
  if (a.packed.rows * a.packed.cols == 0) return;
  dispatch_float(a.out.dtype, [&]<class T>() {
    in_packs<T>(a.out.read()) ? launch<T, kPackOf<T>>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace troupe
