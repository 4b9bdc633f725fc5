#include <algorithm>
#include <cassert>
#include <cstdio>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/index_check/index_check.h"
#include "troupe/kernels/index_check/index_rule.h"

// <cassert> declares it where assert() is in force alone.
#ifdef NDEBUG
extern "C" __host__ __device__ void __assert_fail(const char* assertion, const char* file,
                                                  unsigned line, const char* function) noexcept
    __attribute__((__noreturn__));
#endif

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 264;  // two a multiprocessor

__device__ void refuse(const IndexSpan& s, int64_t i) {
  printf(
      "troupe: a number of an operator's indices, offsets or counts must lie in %lld..%lld and "
      "in its place; number %lld of %lld is %lld\n",
      static_cast<long long>(s.low), static_cast<long long>(s.high), static_cast<long long>(i),
      static_cast<long long>(s.size), static_cast<long long>(index_detail::number(s, i)));
  __assert_fail(
      "an operator of troupe was given indices, offsets or counts out of bounds; on the "
      "CPU the same call names them",
      __FILE__, __LINE__, __func__);
}

// Threads share each span out by stride; numbers are read once, their neighbours from cache. It is
// bound by its launch: a plan of 500,000 rows is 6 MB.
__global__ void __launch_bounds__(kThreads)
    index_check_kernel(const __grid_constant__ IndexCheck a) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int s = 0; s < a.count; ++s) {
    for (int64_t i = first; i < a.spans[s].size; i += step) {
      if (!index_detail::at_fault(a.spans[s], i)) continue;
      if (a.faults == nullptr) refuse(a.spans[s], i);
      atomicAdd(a.faults + s, 1);
    }
  }
}

}  // namespace

void index_check_cuda(const IndexCheck& a, cudaStream_t stream) {
  validate(a);
  int64_t longest = 0;
  for (int s = 0; s < a.count; ++s) longest = std::max(longest, a.spans[s].size);
  if (a.faults != nullptr && a.count > 0) {
    TROUPE_CUDA_CHECK(cudaMemsetAsync(a.faults, 0, a.count * sizeof(int32_t), stream));
  }
  if (longest == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(longest, kThreads), kMostBlocks));
  index_check_kernel<<<blocks, kThreads, 0, stream>>>(a);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
