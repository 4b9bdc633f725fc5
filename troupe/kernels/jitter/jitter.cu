#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/jitter/factor.h"
#include "troupe/kernels/jitter/jitter.h"

namespace troupe {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMaxRows = 65535;  // of a grid; a block goes on to further rows
constexpr int kColumns = static_cast<int>(jitter_detail::kColumns);

// A thread takes four neighboring columns of a row: one call of the generator, and one load and
// store where rows are aligned.
template <class T>
__global__ void __launch_bounds__(kThreads)
    jitter_kernel(Jitter a, Mat<const T> x, Mat<T> out, bool packed) {
  const int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x, d = group * kColumns;
  if (d >= x.cols) return;
  const bool whole = packed && d + kColumns <= x.cols;
  const int n = static_cast<int>(min(int64_t{kColumns}, x.cols - d));
  for (int64_t t = blockIdx.y; t < x.rows; t += gridDim.y) {
    const Words4 r = a.rng.bits(a.token(t), static_cast<uint32_t>(group));
    Pack<T, kColumns> v;
    if (whole) v = load_pack<kColumns>(x.row(t) + d);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (!whole && i < n) v.v[i] = x(t, d + i);
      if (i < n) {
        v.v[i] =
            static_cast<T>(static_cast<float>(v.v[i]) * jitter_detail::factor(r.w[i], a.epsilon));
      }
      if (!whole && i < n) out(t, d + i) = v.v[i];
    }
    if (whole) store_pack(out.row(t) + d, v);
  }
}

// A thread an element.
template <class T>
__global__ void __launch_bounds__(kThreads) normal_noise_kernel(NormalNoise a, Mat<T> out) {
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (e >= out.cols) return;
  for (int64_t t = blockIdx.y; t < out.rows; t += gridDim.y) {
    out(t, e) = static_cast<T>(a.std * a.rng.normal(a.token(t), static_cast<uint32_t>(e)));
  }
}

dim3 grid(int64_t rows, int64_t threads) {
  return {static_cast<unsigned>(ceil_div(threads, kThreads)),
          static_cast<unsigned>(std::min(rows, kMaxRows))};
}

}  // namespace

void jitter_cuda(const Jitter& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows * a.x.cols == 0) return;
  const bool packed = rows_are_packed(a.x) && rows_are_packed(a.out.read());
  dispatch_float(a.x.dtype, [&]<class T>() {
    jitter_kernel<T><<<grid(a.x.rows, ceil_div(a.x.cols, kColumns)), kThreads, 0, stream>>>(
        a, a.x.as<T>(), a.out.as<T>(), packed);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void normal_noise_cuda(const NormalNoise& a, cudaStream_t stream) {
  validate(a);
  if (a.out.rows * a.out.cols == 0) return;
  dispatch_float(a.out.dtype, [&]<class T>() {
    normal_noise_kernel<T><<<grid(a.out.rows, a.out.cols), kThreads, 0, stream>>>(a, a.out.as<T>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
