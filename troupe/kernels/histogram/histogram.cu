#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/compiled_for.cuh"
#include "troupe/kernels/device/mbarrier.cuh"
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

// ---- a row by one cluster of blocks, in one launch

constexpr int kClusterThreads = 1024;
constexpr int kVectorBytes = 16;

// Counts 16 bytes' elements.
template <class T>
__device__ void count_vector(int32_t* count, const uint4& v, int64_t bins) {
  const T* const values = reinterpret_cast<const T*>(&v);
#pragma unroll
  for (int i = 0; i < kVectorBytes / static_cast<int>(sizeof(T)); ++i) {
    const T b = values[i];
    if (0 <= b && b < bins) atomicAdd(&count[b], 1);
  }
}

// Blocks of a cluster count parts of a row in their shared memory; then each sums the counts of
// some bins over all blocks, in their order, and writes them. `vectors`: rows begin at multiples of
// 16 bytes. Nothing is zeroed before, and no atomic leaves the block.
template <class T>
__global__ void __launch_bounds__(kClusterThreads)
    histogram_cluster_kernel(const T* x, int64_t rows, int64_t n, int64_t bins, bool vectors,
                             int32_t* out) {
#if __CUDA_ARCH__ >= 900
  constexpr int kVectorsInFlight = 4;  // of a thread
  extern __shared__ int32_t count[];
  const auto blocks = static_cast<int>(gridDim.x);  // a cluster is as wide as the grid
  const int thread = static_cast<int>(blockIdx.x) * kClusterThreads + static_cast<int>(threadIdx.x);
  const int threads = blocks * kClusterThreads;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    for (int64_t b = threadIdx.x; b < bins; b += kClusterThreads) count[b] = 0;
    __syncthreads();
    const T* const values = x + row * n;
    int64_t counted = 0;
    if (vectors) {
      constexpr int64_t kEach = kVectorBytes / sizeof(T);
      const auto* const lines = reinterpret_cast<const uint4*>(values);
      const int64_t whole = n / kEach;
      for (int64_t first = thread; first < whole; first += int64_t{kVectorsInFlight} * threads) {
        uint4 some[kVectorsInFlight];
#pragma unroll
        for (int i = 0; i < kVectorsInFlight; ++i) {
          const int64_t at = first + int64_t{i} * threads;
          if (at < whole) some[i] = __ldg(lines + at);
        }
#pragma unroll
        for (int i = 0; i < kVectorsInFlight; ++i) {
          if (first + int64_t{i} * threads < whole) count_vector<T>(count, some[i], bins);
        }
      }
      counted = whole * kEach;
    }
    for (int64_t j = counted + thread; j < n; j += threads) {
      const T b = values[j];
      if (0 <= b && b < bins) atomicAdd(&count[b], 1);
    }
    __syncwarp();
    sm90::cluster_sync();
    const uint32_t table = sm90::shared_address(count);
    for (int64_t b = thread; b < bins; b += threads) {
      int32_t sum = 0;
      for (int block = 0; block < blocks; ++block) {
        sum += sm90::load_remote(sm90::remote_address(table + static_cast<uint32_t>(b) * 4,
                                                      static_cast<uint32_t>(block)));
      }
      out[row * bins + b] = sum;
    }
    __syncwarp();
    sm90::cluster_sync();  // A block's memory must outlive the others' reads.
  }
#endif
}

template <class T>
void launch_cluster(const Histogram& a, int64_t blocks, cudaStream_t stream) {
  const T* const x = a.x.as<T>();
  const bool vectors = reinterpret_cast<uintptr_t>(x) % kVectorBytes == 0 &&
                       (a.x.rows == 1 || a.x.cols * sizeof(T) % kVectorBytes == 0);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(a.x.rows, kMaxRowBlocks)));
  config.blockDim = dim3(kClusterThreads);
  config.dynamicSmemBytes = static_cast<size_t>(a.bins) * 4;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  TROUPE_CUDA_CHECK(cudaLaunchKernelEx(&config, histogram_cluster_kernel<T>, x, a.x.rows, a.x.cols,
                                       a.bins, vectors, a.out));
}

bool has_clusters(IntDtype dtype) {
  // [&] with nothing to capture: nvcc warns of lambdas that convert to a function pointer.
  return dispatch_integer(dtype,
                          [&]<class T>() { return compiled_for(90, histogram_cluster_kernel<T>); });
}

}  // namespace

void histogram_cuda(const Histogram& a, cudaStream_t stream) {
  validate(a);
  const int64_t n = a.x.cols;
  if (a.x.rows == 0) return;
  const HistogramPlan plan = choose_histogram_plan(a);
  if (plan.cluster_blocks > 0 && has_clusters(a.x.dtype)) {
    dispatch_integer(a.x.dtype,
                     [&]<class T>() { launch_cluster<T>(a, plan.cluster_blocks, stream); });
    TROUPE_LAUNCH_CHECK(stream);
    return;
  }
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
