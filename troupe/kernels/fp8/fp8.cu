#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/fp8/fp8.h"
#include "troupe/kernels/fp8/fp8_rule.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;

// The largest `top` of a team of kTeam neighboring threads: half a warp, a warp, or the block.
template <int kRowThreads>
__device__ __forceinline__ uint32_t row_threads_max(uint32_t top, uint32_t* shared) {
  constexpr int kLanes = kRowThreads < kWarpLanes ? kRowThreads : kWarpLanes;
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    top = max(top, __shfl_xor_sync(kWholeWarp, top, offset));
  }
  if constexpr (kRowThreads == kThreads) {
    if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = top;
    __syncthreads();
    for (int warp = 0; warp < kThreads / kWarpLanes; ++warp) top = max(top, shared[warp]);
  }
  return top;
}

struct Group {
  Fp8Rows rows;
  int64_t column, columns;  // of x
  int64_t scale_row, scale_column;
};

// The group of this thread's team; without rows past the last one, so that all lanes of a warp meet
// in its shuffles.
template <int kRowThreads>
__device__ __forceinline__ Group group_of_row_threads(const Fp8Groups& groups, int64_t R, int64_t C,
                                                      int64_t scale_rows, int64_t scale_columns) {
  const int64_t item = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kRowThreads;
  const int64_t row = item / scale_columns, column = item % scale_columns;
  if (row >= scale_rows) return {};
  const int64_t width = groups.columns == kWholeRow ? C : groups.columns;
  const int64_t rest = C - column * width;
  return {fp8_rows(groups, R, row), column * width, width < rest ? width : rest, row, column};
}

// f(row, column) for the places of a group that are this thread's, kN elements each. Whole rows of
// a tile of 128 columns are neighboring threads'.
template <int kN, int kRowThreads, class F>
__device__ __forceinline__ void each_place(const Group& g, F&& f) {
  const int t = static_cast<int>(threadIdx.x) % kRowThreads;
  if (g.rows.end - g.rows.begin <= 1) {
    if (g.rows.begin == g.rows.end) return;
    for (int64_t c = int64_t{t} * kN; c < g.columns; c += kRowThreads * kN)
      f(g.rows.begin, g.column + c);
    return;
  }
  const int packs = static_cast<int>(g.columns) / kN;  // at most 128
  const int places = packs * static_cast<int>(g.rows.end - g.rows.begin);
#pragma unroll 8
  for (int p = t; p < places; p += kRowThreads)
    f(g.rows.begin + p / packs, g.column + p % packs * kN);
}

template <int kN>
__device__ __forceinline__ void store_bytes(uint8_t* to, const uint32_t (&byte)[kN]) {
  if constexpr (kN == 1) {
    *to = static_cast<uint8_t>(byte[0]);
  } else {
    Pack<uint32_t, kN / 4> out;
#pragma unroll
    for (int w = 0; w < kN / 4; ++w) {
      out.v[w] = __byte_perm(__byte_perm(byte[4 * w], byte[4 * w + 1], 0x0040),
                             __byte_perm(byte[4 * w + 2], byte[4 * w + 3], 0x0040), 0x5410);
    }
    store_pack(reinterpret_cast<uint32_t*>(to), out);
  }
}

// A team a group: half a warp or a warp for 1 x 128, a warp for a whole row, a block for 128 x 128.
// x is read from memory once, and a second time from the cache; a group is at most 64 KB. Bound by
// memory.
template <class T, int kN, int kRowThreads>
__global__ void __launch_bounds__(kThreads)
    quantize_fp8_kernel(Mat<const T> x, const float* factor, const float* largest, Fp8Groups groups,
                        Mat<uint8_t> bytes, Mat<float> scales) {
  __shared__ uint32_t shared[kThreads / kWarpLanes];
  const Group g =
      group_of_row_threads<kRowThreads>(groups, x.rows, x.cols, scales.rows, scales.cols);
  uint32_t top = 0;
  if (largest == nullptr) {
    each_place<kN, kRowThreads>(g, [&](int64_t r, int64_t c) {
      const auto in = load_pack<kN>(x.row(r) + c);
      const float by = factor == nullptr ? 1.0f : factor[r];
#pragma unroll
      for (int j = 0; j < kN; ++j) top = max(top, magnitude(static_cast<float>(in.v[j]) * by));
    });
    top = row_threads_max<kRowThreads>(top, shared);
  }
  if (g.rows.begin == g.rows.end) return;
  if (largest != nullptr) top = magnitude(largest[fp8_part(groups, g.rows.begin)]);
  const Fp8Scale scale = fp8_scale(top);
  if (threadIdx.x % kRowThreads == 0) scales(g.scale_row, g.scale_column) = scale.scale;
  each_place<kN, kRowThreads>(g, [&](int64_t r, int64_t c) {
    const auto in = load_pack<kN>(x.row(r) + c);
    const float by = factor == nullptr ? 1.0f : factor[r];
    uint32_t byte[kN];
#pragma unroll
    for (int j = 0; j < kN; ++j) byte[j] = fp8_byte(static_cast<float>(in.v[j]) * by, scale);
    store_bytes(bytes.row(r) + c, byte);
  });
}

template <class T, int kN, int kRowThreads>
__global__ void __launch_bounds__(kThreads)
    dequantize_fp8_kernel(Mat<const uint8_t> bytes, Mat<const float> scales, Fp8Groups groups,
                          Mat<T> x) {
  const Group g =
      group_of_row_threads<kRowThreads>(groups, x.rows, x.cols, scales.rows, scales.cols);
  if (g.rows.begin == g.rows.end) return;
  const float scale = scales(g.scale_row, g.scale_column);
  each_place<kN, kRowThreads>(g, [&](int64_t r, int64_t c) {
    const auto in = load_pack<kN>(bytes.row(r) + c);
    Pack<T, kN> out;
#pragma unroll
    for (int j = 0; j < kN; ++j) out.v[j] = static_cast<T>(E4M3::widen(in.v[j]) * scale);
    store_pack(x.row(r) + c, out);
  });
}

// kN elements at a time need rows of both that begin on them, and no place that is cut off.
template <class T>
bool in_packs(const MatRef& x, const uint8_t* bytes, int64_t ld) {
  constexpr int kN = kPackOf<T>;
  return rows_are_packed(x) && reinterpret_cast<uintptr_t>(bytes) % kN == 0 && ld % kN == 0 &&
         x.cols % kN == 0;
}

// body<T, kN, kTeam>(blocks)
template <class Body>
void launch(const MatRef& x, const uint8_t* bytes, int64_t ld, const Fp8Groups& groups,
            int64_t num_groups, Body&& body) {
  dispatch_float(x.dtype, [&]<class T>() {
    const auto with_row_threads = [&]<int kN, int kRowThreads>() {
      const int64_t blocks = ceil_div(num_groups * kRowThreads, kThreads);
      TROUPE_CHECK(blocks <= 0x7fffffff, "groups", num_groups);
      body.template operator()<T, kN, kRowThreads>(static_cast<unsigned>(blocks));
    };
    const auto with_pack = [&]<int kN>() {
      if (groups.rows > 1) return with_row_threads.template operator()<kN, kThreads>();
      if (groups.columns == kWholeRow || kN < 8) {
        return with_row_threads.template operator()<kN, kWarpLanes>();
      }
      with_row_threads.template operator()<kN, kWarpLanes / 2>();
    };
    if (in_packs<T>(x, bytes, ld)) return with_pack.template operator()<kPackOf<T>>();
    with_pack.template operator()<1>();
  });
}

}  // namespace

void quantize_fp8_cuda(const QuantizeFp8& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows * a.x.cols == 0) return;
  const int64_t num_groups = a.scales.rows * a.scales.cols;
  launch(a.x, a.bytes.data, a.bytes.ld, a.groups, num_groups,
         [&]<class T, int kN, int kRowThreads>(unsigned blocks) {
           quantize_fp8_kernel<T, kN, kRowThreads><<<blocks, kThreads, 0, stream>>>(
               a.x.as<T>(), a.factor, a.largest, a.groups, a.bytes, a.scales);
         });
  TROUPE_LAUNCH_CHECK(stream);
}

void dequantize_fp8_cuda(const DequantizeFp8& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows * a.x.cols == 0) return;
  const int64_t num_groups = a.scales.rows * a.scales.cols;
  launch(a.x.read(), a.bytes.data, a.bytes.ld, a.groups, num_groups,
         [&]<class T, int kN, int kRowThreads>(unsigned blocks) {
           dequantize_fp8_kernel<T, kN, kRowThreads>
               <<<blocks, kThreads, 0, stream>>>(a.bytes, a.scales, a.groups, a.x.as<T>());
         });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
