#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/row_scores/row_scores.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;

// A thread an output; the index and the output are coalesced, the gathered scores are in L2.
__global__ void __launch_bounds__(kThreads)
    row_scores_kernel(Mat<const float> in, const int32_t* index, Mat<float> out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < out.rows) out(i, 0) = index[i] < 0 ? 0.f : in(index[i], 0);
}

}  // namespace

void row_scores_cuda(const RowScores& a, cudaStream_t stream) {
  validate(a);
  if (a.out.rows == 0) return;
  const auto blocks = static_cast<unsigned>((a.out.rows + kThreads - 1) / kThreads);
  row_scores_kernel<<<blocks, kThreads, 0, stream>>>(a.in.as<float>(), a.index, a.out.as<float>());
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
