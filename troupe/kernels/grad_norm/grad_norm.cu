#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/grad_norm/grad_norm.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;

// The first stage: one block of threads a block of elements, each thread kN of them at a time.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads) block_sums_kernel(const T* x, int64_t n, double* sums) {
  __shared__ double shared[kThreads / kWarpLanes];
  const int64_t begin = int64_t{blockIdx.x} * kSumBlock, end = min(begin + kSumBlock, n);
  double sum = 0;
  for (int64_t i = begin + int64_t{threadIdx.x} * kN; i < end; i += kThreads * kN) {
    const auto pack = load_pack<kN>(x + i);
    for (int j = 0; j < kN; ++j) {
      const double v = static_cast<float>(pack.v[j]);
      sum += v * v;
    }
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The second stage: one block; thread i adds the sums i, i + 256, ...
__global__ void __launch_bounds__(kThreads)
    add_blocks_kernel(const double* sums, int64_t blocks, double* out, bool add) {
  __shared__ double shared[kThreads / kWarpLanes];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += sums[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *out = (add ? *out : 0.0) + sum;
}

__global__ void clip_scale_kernel(ClipScale a) {
  const double norm = sqrt(*a.sum_squares);
  *a.norm = static_cast<float>(norm);
  *a.scale = isfinite(norm) ? static_cast<float>(fmin(1.0, a.max_norm / (norm + 1e-6))) : NAN;
}

}  // namespace

void sum_squares_cuda(const SumSquares& a, cudaStream_t stream) {
  validate(a);
  const int64_t n = a.x.cols, blocks = (n + kSumBlock - 1) / kSumBlock;
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", n);
  auto* sums = static_cast<double*>(a.workspace);
  if (blocks > 0) {
    dispatch_float(a.x.dtype, [&]<class T>() {
      const bool packed = rows_are_packed({a.x.data, a.x.dtype, 1, n, n}) && n % kPackOf<T> == 0;
      const auto kernel = packed ? block_sums_kernel<T, kPackOf<T>> : block_sums_kernel<T, 1>;
      kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a.x.as<T>().data, n, sums);
    });
  }
  add_blocks_kernel<<<1, kThreads, 0, stream>>>(sums, blocks, a.out, a.add);
  TROUPE_LAUNCH_CHECK(stream);
}

void clip_scale_cuda(const ClipScale& a, cudaStream_t stream) {
  validate(a);
  clip_scale_kernel<<<1, 1, 0, stream>>>(a);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
