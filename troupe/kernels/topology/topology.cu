#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/topology/topology.h"

namespace troupe {
namespace {

constexpr int kThreads = 128;

// One warp a block row: all lanes find its expert by the same binary search, then write its
// columns.
__global__ void __launch_bounds__(kThreads) topology_kernel(Topology a) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (i >= a.block_rows) return;
  int low = 0, high = static_cast<int>(a.experts);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (a.padded_bins[middle] > i * a.block) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (int64_t c = threadIdx.x % 32; c < a.block_columns; c += 32) {
    const int64_t column = low < a.experts ? low * a.block_columns + c : -1;
    a.out[i * a.block_columns + c] = static_cast<int32_t>(column);
  }
}

}  // namespace

void topology_cuda(const Topology& a, cudaStream_t stream) {
  validate(a);
  if (a.block_rows * a.block_columns == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(a.block_rows * 32, kThreads));
  topology_kernel<<<blocks, kThreads, 0, stream>>>(a);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
