#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/radix_select.cuh"
#include "troupe/kernels/device/topk.cuh"
#include "troupe/kernels/quantile/quantile.h"

namespace troupe {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kColumnThreads = 1024;
constexpr int64_t kMaxBlocks = 1 << 16;

// A warp a token: the (K + 1)-th largest by going through the row K + 1 times, then the row's keys
// less it, one column an expert. 0: the row takes no part.
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_kernel(Quantile a, Mat<const T> logits, uint32_t* keys) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  const int64_t lane = threadIdx.x % kWarpLanes, E = logits.cols;
  if (t >= logits.rows) return;
  const bool valid = a.valid == nullptr || a.valid[t] != 0;
  uint64_t last = ~uint64_t{0};
  for (int64_t k = 0; k <= a.choices; ++k) {
    uint64_t best = 0;
    for (int64_t e = lane; e < E; e += kWarpLanes) {
      const float x = static_cast<float>(logits(t, e)) - a.beta[e];
      const uint64_t next = ranked(sort_key(x), static_cast<uint32_t>(e));
      if (next < last && next > best) best = next;
    }
    last = warp_max_ranked(best);
  }
  const float alpha = value_of_key(key_of(last));
  for (int64_t e = lane; e < E; e += kWarpLanes) {
    const float left = static_cast<float>(logits(t, e)) - alpha;
    keys[e * logits.rows + t] = valid && isfinite(alpha) ? sort_key(left) : 0;
  }
}

// A block an expert.
__global__ void __launch_bounds__(kColumnThreads) column_kernel(Quantile a, const uint32_t* keys) {
  __shared__ int64_t scratch[kScanScratch];
  const int64_t T = a.logits.rows, E = a.logits.cols;
  for (int64_t e = blockIdx.x; e < E; e += gridDim.x) {
    const uint32_t* column = keys + e * T;
    int64_t mine = 0;
    for (int64_t t = threadIdx.x; t < T; t += kColumnThreads) mine += column[t] != 0;
    const int64_t n = block_scan(mine, scratch).total;
    float next = a.beta[e];
    if (n > 0) {
      next = value_of_key(radix_select<kColumnThreads>(column, T, n * a.choices / E + 1).key);
    }
    if (threadIdx.x == 0) a.next[e] = next;
    __syncthreads();  // Shared memory serves the next expert.
  }
}

}  // namespace

void quantile_cuda(const Quantile& a, cudaStream_t stream) {
  validate(a);
  auto* keys = static_cast<uint32_t*>(a.workspace);
  TROUPE_CHECK(keys != nullptr || a.logits.rows == 0, "workspace of", workspace_bytes(a), "bytes");
  if (a.logits.rows > 0) {
    dispatch_float(a.logits.dtype, [&]<class T>() {
      const auto blocks = static_cast<unsigned>(ceil_div(a.logits.rows, kWarps));
      row_kernel<T><<<blocks, kThreads, 0, stream>>>(a, a.logits.as<T>(), keys);
    });
    TROUPE_LAUNCH_CHECK(stream);
  }
  const auto blocks = static_cast<unsigned>(std::min(a.logits.cols, kMaxBlocks));
  column_kernel<<<blocks, kColumnThreads, 0, stream>>>(a, keys);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
