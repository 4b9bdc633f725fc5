#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/replicate/bins.h"
#include "troupe/kernels/replicate/replicate.h"

namespace troupe {
namespace {

using replicate_detail::Bin;
using replicate_detail::bin;

constexpr int kThreads = 256;

// The bin that holds element j: the first whose end is past it; E where none does.
__device__ int bin_of(const int32_t* bins, int experts, int64_t j) {
  int low = 0, high = experts;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (bins[middle] > j) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// One thread an element of out; its bin is found once and serves all rows.
template <class Word>
__global__ void __launch_bounds__(kThreads) replicate_kernel(Replicate a) {
  const auto* x = static_cast<const Word*>(a.x);
  auto* out = static_cast<Word*>(a.out);
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= a.outputs) return;
  const int e = bin_of(a.bins, static_cast<int>(a.experts), j);
  for (int64_t i = 0; i < a.rows; ++i) {
    out[i * a.outputs + j] = e < a.experts ? x[i * a.experts + e] : Word{0};
  }
}

// One warp an element of grad_x.
template <class T>
__global__ void __launch_bounds__(kThreads)
    replicate_backward_kernel(Mat<const T> grad, const int32_t* bins, Mat<T> out) {
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpLanes;
  if (warp >= out.rows * out.cols) return;  // Whole warps leave.
  const int64_t i = warp / out.cols, e = warp % out.cols;
  const Bin b = bin(bins, e, grad.cols);
  float sum = 0;
  for (int64_t j = b.begin + threadIdx.x % kWarpLanes; j < b.end; j += kWarpLanes) {
    sum += static_cast<float>(grad(i, j));
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarpLanes == 0) out(i, e) = static_cast<T>(sum);
}

}  // namespace

void replicate_cuda(const Replicate& a, cudaStream_t stream) {
  validate(a);
  if (a.rows * a.outputs == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(a.outputs, kThreads));
  replicate_detail::dispatch_word(a.element_bytes, [&]<class Word>() {
    replicate_kernel<Word><<<blocks, kThreads, 0, stream>>>(a);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void replicate_backward_cuda(const ReplicateBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.grad_x.rows == 0) return;
  const int64_t warps = a.grad_x.rows * a.grad_x.cols;
  const auto blocks = static_cast<unsigned>(ceil_div(warps * kWarpLanes, kThreads));
  dispatch_float(a.grad_out.dtype, [&]<class T>() {
    replicate_backward_kernel<T>
        <<<blocks, kThreads, 0, stream>>>(a.grad_out.as<T>(), a.bins, a.grad_x.as<T>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
