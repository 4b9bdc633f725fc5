#include <algorithm>
#include <bit>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/combine/combine.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/token_grid.h"

namespace troupe {
namespace {

constexpr int kMaxInFlight = 8;  // Rows a thread has under way: 128 bytes.

template <int kN>
struct Sum {
  float v[kN] = {};

  template <class A>
  __device__ void add(const Pack<A, kN>& x, float w) {
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] += w * static_cast<float>(x.v[i]);
  }
  template <class T>
  __device__ Pack<T, kN> rounded() const {
    Pack<T, kN> out;
#pragma unroll
    for (int i = 0; i < kN; ++i) out.v[i] = static_cast<T>(v[i]);
    return out;
  }
};

// Some lanes a token, kN neighbors a lane. kInFlight rows are loaded before the first is added, so
// that the gathered reads overlap; the order of the sum is that of the slots. Bound by reading y.
template <class T, class A, int kN, int kInFlight>
__global__ void __launch_bounds__(kTokenGridThreads)
    combine_kernel(PlanRef plan, Mat<const T> y, const float* weights, Mat<const A> addend,
                   Mat<T> out) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (t >= plan.tokens) return;
  const int K = static_cast<int>(plan.choices), packs = static_cast<int>(out.cols / kN);
  const int32_t* slot_row = plan.slot_row + t * K;
  const float* w = weights == nullptr ? nullptr : weights + t * K;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += static_cast<int>(blockDim.x)) {
    Sum<kN> sum;
    for (int k0 = 0; k0 < K; k0 += kInFlight) {
      Pack<T, kN> value[kInFlight];
      int32_t row[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        row[i] = k0 + i < K ? __ldg(&slot_row[k0 + i]) : -1;
        if (row[i] >= 0) value[i] = load_pack<kN>(y.row(row[i]) + p * kN);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (row[i] >= 0) sum.add(value[i], w == nullptr ? 1.0f : __ldg(&w[k0 + i]));
      }
    }
    if (addend.data != nullptr) sum.add(load_pack<kN>(addend.row(t) + p * kN), 1.0f);
    store_pack(out.row(t) + p * kN, sum.template rounded<T>());
  }
}

template <class T, class A, int kN>
void launch(const Combine& a, cudaStream_t stream) {
  const TokenGrid grid = token_grid(a.plan.tokens, a.out.cols / kN);
  const auto addend = a.addend.data == nullptr ? Mat<const A>{} : a.addend.as<A>();
  const auto wanted = static_cast<unsigned>(std::min<int64_t>(a.plan.choices, kMaxInFlight));
  dispatch_int<1, 2, 4, 8>(static_cast<int>(std::bit_ceil(wanted)), [&]<int kInFlight>() {
    combine_kernel<T, A, kN, kInFlight><<<grid.blocks, dim3(grid.lanes, grid.tokens), 0, stream>>>(
        a.plan, a.y.as<T>(), static_cast<const float*>(a.weights.data), addend, a.out.as<T>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

// An f32 addend is read kPackOf<T> floats at a time: 32 bytes for 16-bit T, as two accesses.
template <class T, class A>
void choose_width(const Combine& a, cudaStream_t stream) {
  const bool packed = a.out.cols % kPackOf<T> == 0 && rows_are_packed(a.y) &&
                      rows_are_packed(a.out.read()) && rows_are_packed(a.addend);
  const bool wide = sizeof(A) > sizeof(T) && a.addend.data != nullptr;
  const bool aligned = !wide || (reinterpret_cast<uintptr_t>(a.addend.data) % 32 == 0 &&
                                 a.addend.ld % kPackOf<T> == 0);
  packed&& aligned ? launch<T, A, kPackOf<T>>(a, stream) : launch<T, A, 1>(a, stream);
}

}  // namespace

void combine_cuda(const Combine& a, cudaStream_t stream) {
  validate(a);
  if (a.plan.tokens == 0) return;
  const bool wide_addend = a.addend.data != nullptr && a.addend.dtype == Dtype::kF32;
  dispatch_float(a.y.dtype, [&]<class T>() {
    wide_addend ? choose_width<T, float>(a, stream) : choose_width<T, T>(a, stream);
  });
}

}  // namespace troupe
