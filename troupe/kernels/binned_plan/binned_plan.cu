#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/binned_plan/binned_plan.h"
#include "troupe/kernels/binned_plan/segments.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;

// The expert whose segment holds the row: the last one that begins at or before it.
__device__ int64_t expert_of(const BinnedPlan& a, int64_t row) {
  int64_t low = 0, high = a.experts - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (binned::segment_begin(a, middle) <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// One thread a row and, by stride, one an expert. slot_row was filled with -1.
__global__ void __launch_bounds__(kThreads) binned_plan_kernel(BinnedPlan a) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t e = first; e <= a.experts; e += step) {
    a.expert_offset[e] = static_cast<int32_t>(binned::segment_begin(a, e));
    if (e < a.experts) a.counts[e] = binned::segment(a, e).count;
  }
  for (int64_t r = first; r < a.rows; r += step) {
    const binned::Segment s = binned::segment(a, expert_of(a, r));
    const int32_t slot = r < s.end ? binned::slot_of(a, s, r - s.offset) : -1;
    a.row_slot[r] = slot;
    a.row_src[r] = slot < 0 ? -1 : slot / static_cast<int>(a.choices);
    if (slot >= 0) a.slot_row[slot] = static_cast<int32_t>(r);
  }
}

}  // namespace

void binned_plan_cuda(const BinnedPlan& a, cudaStream_t stream) {
  validate(a);
  const int64_t slots = a.tokens * a.choices;
  if (slots > 0) TROUPE_CUDA_CHECK(cudaMemsetAsync(a.slot_row, 0xff, slots * 4, stream));
  const int64_t threads = std::max(a.rows, a.experts + 1);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(threads, kThreads), 4096));
  binned_plan_kernel<<<blocks, kThreads, 0, stream>>>(a);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
