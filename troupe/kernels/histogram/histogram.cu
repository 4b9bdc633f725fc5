#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/histogram/histogram.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;  // Elements of x: few enough that 16,384 of them use several blocks.
constexpr int64_t kMaxSharedBins = 8192;  // 32 KB
constexpr int64_t kMaxRowBlocks = 65535;  // gridDim.y

// A block counts a stretch of a row in shared memory, then adds what it found to the row's counts.
// Integer atomics: exact in any order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    histogram_kernel(const T* x, int64_t rows, int64_t n, int64_t bins, int32_t* out) {
  extern __shared__ int32_t count[];
  const bool shared = bins <= kMaxSharedBins;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    int32_t* target = shared ? count : out + row * bins;
    for (int64_t b = threadIdx.x; shared && b < bins; b += kThreads) count[b] = 0;
    __syncthreads();
    const int64_t step = int64_t{gridDim.x} * kThreads;
    for (int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x; j < n; j += step) {
      const T b = x[row * n + j];
      if (0 <= b && b < bins) atomicAdd(&target[b], 1);
    }
    __syncthreads();
    for (int64_t b = threadIdx.x; shared && b < bins; b += kThreads) {
      if (count[b] != 0) atomicAdd(&out[row * bins + b], count[b]);
    }
    __syncthreads();
  }
}

}  // namespace

void histogram_cuda(const Histogram& a, cudaStream_t stream) {
  validate(a);
  const int64_t n = a.x.cols;
  if (a.x.rows == 0) return;
  TROUPE_CUDA_CHECK(
      cudaMemsetAsync(a.out, 0, a.x.rows * a.bins * int64_t{sizeof(int32_t)}, stream));
  if (n == 0) return;
  const auto x_blocks = std::min<int64_t>(ceil_div(n, kThreads * kPerThread), 512);
  const dim3 blocks(static_cast<unsigned>(x_blocks),
                    static_cast<unsigned>(std::min(a.x.rows, kMaxRowBlocks)));
  const auto bytes = a.bins <= kMaxSharedBins ? static_cast<unsigned>(a.bins * 4) : 0u;
  dispatch_integer(a.x.dtype, [&]<class T>() {
    histogram_kernel<<<blocks, kThreads, bytes, stream>>>(a.x.as<T>(), a.x.rows, n, a.bins, a.out);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
