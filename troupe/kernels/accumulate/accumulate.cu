#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/accumulate/accumulate.h"
#include "troupe/kernels/device/pack.cuh"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int kPacks = 4;  // of f32, of a thread; those of a warp's load are neighbors

// Bound by memory: sixteen bytes of the sum at a time, all loads of a thread before its first
// store. kN = 1 where rows are not aligned.
template <class T, int kN, bool kAdd>
__global__ void __launch_bounds__(kThreads) accumulate_kernel(const T* x, float* sum, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kPacks * kN) + threadIdx.x * kN;
  Pack<T, kN> in[kPacks];
  Pack<float, kN> out[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t i = first + p * (kThreads * kN);
    if (i >= n) break;
    in[p] = load_pack<kN>(x + i);
    if constexpr (kAdd) out[p] = load_pack<kN>(sum + i);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t i = first + p * (kThreads * kN);
    if (i >= n) return;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const auto v = static_cast<float>(in[p].v[j]);
      out[p].v[j] = kAdd ? __fadd_rn(out[p].v[j], v) : v;
    }
    store_pack(sum + i, out[p]);
  }
}

template <class T, int kN>
void launch(const Accumulate& a, cudaStream_t stream) {
  const int64_t n = a.x.cols, blocks = ceil_div(n, int64_t{kThreads} * kPacks * kN);
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", n);
  const auto kernel = a.add ? accumulate_kernel<T, kN, true> : accumulate_kernel<T, kN, false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a.x.as<T>().data, a.sum, n);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace

void accumulate_cuda(const Accumulate& a, cudaStream_t stream) {
  validate(a);
  const int64_t n = a.x.cols;
  if (n == 0) return;
  constexpr int kN = kPackOf<float>;
  const bool packed = n % kN == 0 && rows_are_packed({a.x.data, a.x.dtype, 1, n, n * kN}) &&
                      rows_are_packed({a.sum, Dtype::kF32, 1, n, n});
  dispatch_float(a.x.dtype,
                 [&]<class T>() { packed ? launch<T, kN>(a, stream) : launch<T, 1>(a, stream); });
}

}  // namespace troupe
