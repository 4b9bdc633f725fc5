#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/scores.h"
#include "troupe/kernels/device/radix_select.cuh"
#include "troupe/kernels/device/topk.cuh"
#include "troupe/kernels/expert_choice/workspace.h"

namespace troupe {
namespace {

using expert_choice_detail::kTokensPerBlock;
using expert_choice_detail::Limit;
using expert_choice_detail::Workspace;
using scores::kTiny;

constexpr int kWarps = static_cast<int>(kTokensPerBlock);
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kColumnThreads = 1024;
constexpr int64_t kMaxBlocks = 1 << 16;  // A block goes on to further rows or columns.

__device__ __forceinline__ int64_t token_of_warp(int64_t block) {
  return block * kWarps + threadIdx.x / kWarpLanes;
}
__device__ __forceinline__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x % kWarpLanes);
}
__device__ __forceinline__ bool is_valid(const uint8_t* valid, int64_t t) {
  return valid == nullptr || valid[t] != 0;
}

// A row's softmax, in double, the same on all lanes of its warp.
struct RowExp {
  double top, sum;
  __device__ float lse() const { return static_cast<float>(top + log(sum)); }
};

template <class T>
__device__ RowExp exponentials(const Mat<const T>& logits, int64_t t) {
  float top = -INFINITY;
  double sum = 0;
  for (int64_t e = lane_of_thread(); e < logits.cols; e += kWarpLanes) {
    top = fmaxf(top, static_cast<float>(logits(t, e)));
  }
  top = warp_max(top);
  for (int64_t e = lane_of_thread(); e < logits.cols; e += kWarpLanes) {
    sum += scores::exp_negative(double{static_cast<float>(logits(t, e))} - top);
  }
  return {top, warp_sum(sum)};
}

__device__ __forceinline__ float softmax_of(const RowExp& row, float z) {
  return static_cast<float>(scores::exp_negative(z - row.top) / row.sum);
}

// A warp a token: keys of its scores, one column an expert. The eight tokens of a block fill a
// sector of each column.
template <class T>
__global__ void __launch_bounds__(kThreads)
    score_kernel(ExpertChoice a, Mat<const T> logits, Workspace work) {
  __shared__ double squares[kWarps];
  for (int64_t block = blockIdx.x; block < work.blocks; block += gridDim.x) {
    const int64_t t = token_of_warp(block);
    double square = 0;
    if (t < logits.rows) {
      const bool valid = is_valid(a.valid, t);
      const RowExp row = exponentials(logits, t);
      for (int64_t e = lane_of_thread(); e < logits.cols; e += kWarpLanes) {
        const auto z = static_cast<float>(logits(t, e));
        const float s = a.rule.score == Score::kSoftmax
                            ? softmax_of(row, z)
                            : static_cast<float>(scores::score_of(a.rule.score, z));
        work.keys[e * logits.rows + t] = valid ? sort_key(s) : 0;
      }
      const double lse = row.top + log(row.sum);
      if (valid) square = lse * lse;
      if (lane_of_thread() == 0) work.lse[t] = static_cast<float>(lse);
    }
    __syncthreads();
    if (lane_of_thread() == 0) squares[threadIdx.x / kWarpLanes] = square;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    double sum = 0;
    for (const double s : squares) sum += s;
    work.squares[block] = sum;
  }
}

__device__ int64_t capacity_of(double rho, int64_t n, int64_t experts) {
  const double share = rho * static_cast<double>(n) / static_cast<double>(experts);
  return min(n, max(int64_t{0}, static_cast<int64_t>(ceil(share - 1e-6))));
}

// A block an expert: the last pair that it takes.
__global__ void __launch_bounds__(kColumnThreads) limit_kernel(ExpertChoice a, Workspace work) {
  __shared__ int64_t scratch[kScanScratch];
  const int64_t T = a.logits.rows, E = a.logits.cols;
  for (int64_t e = blockIdx.x; e < E; e += gridDim.x) {
    const uint32_t* keys = work.keys + e * T;
    int64_t mine = 0;
    for (int64_t t = threadIdx.x; t < T; t += kColumnThreads) {
      mine += a.given_ids != nullptr ? keys[t] != 0 && a.given_ids[t * E + e] == e : keys[t] != 0;
    }
    const int64_t n = block_scan(mine, scratch).total;
    const int64_t C = a.given_ids != nullptr ? n : capacity_of(a.rule.rho, n, E);
    if (threadIdx.x == 0) a.counts[e] = C;
    if (a.given_ids != nullptr) continue;
    Limit limit{0xffffffffu, -1};  // Takes none: no score has this key.
    if (C > 0) {
      const Selected s = radix_select<kColumnThreads>(keys, T, C);
      limit = {s.key, last_tie<kColumnThreads>(keys, T, s)};
    }
    if (threadIdx.x == 0) work.limits[e] = limit;
    __syncthreads();  // Shared memory serves the next expert.
  }
}

__device__ bool takes(const ExpertChoice& a, const Workspace& work, int64_t t, int64_t e) {
  const int64_t T = a.logits.rows;
  const uint32_t key = work.keys[e * T + t];
  if (key == 0) return false;
  if (a.given_ids != nullptr) return a.given_ids[t * a.logits.cols + e] == e;
  const Limit limit = work.limits[e];
  return key > limit.key || (key == limit.key && t <= limit.token);
}

// A warp a token. The first block also adds up the squares.
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(ExpertChoice a, Mat<float> weights, float* lse_squares, Workspace work) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  for (int64_t block = blockIdx.x; block < work.blocks; block += gridDim.x) {
    const int64_t t = token_of_warp(block);
    if (t >= T) continue;
    const bool broken = isnan(work.lse[t]);
    float sum = 0;
    for (int64_t e = lane_of_thread(); a.rule.normalize && e < E; e += kWarpLanes) {
      if (takes(a, work, t, e)) sum += value_of_key(work.keys[e * T + t]);
    }
    const float divisor = a.rule.normalize ? warp_sum(sum) + kTiny : 1;
    for (int64_t e = lane_of_thread(); e < E; e += kWarpLanes) {
      const bool taken = takes(a, work, t, e);
      const float s = value_of_key(work.keys[e * T + t]);
      a.ids[t * E + e] = taken ? static_cast<int32_t>(e) : -1;
      weights(t, e) = !taken ? 0 : broken ? NAN : a.rule.scale * (s / divisor);
    }
  }
  if (blockIdx.x != 0) return;
  __shared__ double scratch[kWarps];
  double sum = 0;
  for (int64_t b = threadIdx.x; b < work.blocks; b += kThreads) sum += work.squares[b];
  sum = block_sum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) *lse_squares = static_cast<float>(sum);
}

// What a gradient reads and writes.
template <class T>
struct Gradient {
  ExpertChoiceBackward a;
  Mat<const T> logits;
  Mat<T> out;
  Mat<const float> grad_weights;
  const float* grad_squares;

  __device__ bool taken(int64_t t, int64_t e) const { return a.ids[t * logits.cols + e] >= 0; }
  __device__ float grad(int64_t t, int64_t e) const {
    return taken(t, e) && grad_weights.data != nullptr ? a.rule.scale * grad_weights(t, e) : 0;
  }
};

struct Scored {
  float s, slope;  // slope: s itself for the softmax
};
template <class T>
__device__ Scored scored(const Gradient<T>& g, const RowExp& row, float z) {
  if (g.a.rule.score == Score::kSoftmax) {
    const float s = softmax_of(row, z);
    return {s, s};
  }
  const scores::Slope both = scores::slope_of(g.a.rule.score, z);
  return {static_cast<float>(both.s), static_cast<float>(both.ds)};
}

// A warp a token; the row is read four times, from the cache.
template <class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(Gradient<T> g) {
  const int64_t t = token_of_warp(blockIdx.x), E = g.logits.cols;
  if (t >= g.logits.rows) return;
  if (!is_valid(g.a.valid, t)) {
    for (int64_t e = lane_of_thread(); e < E; e += kWarpLanes) g.out(t, e) = T(0.0f);
    return;
  }
  const RowExp row = exponentials(g.logits, t);
  const auto score_at = [&](int64_t e) {
    return scored(g, row, static_cast<float>(g.logits(t, e)));
  };
  float sum = 0, dot = 0;
  for (int64_t e = lane_of_thread(); e < E; e += kWarpLanes) {
    const float s = score_at(e).s;
    sum += g.taken(t, e) ? s : 0;
    dot += g.grad(t, e) * s;
  }
  const float divisor = g.a.rule.normalize ? warp_sum(sum) + kTiny : 1;
  const float shift = g.a.rule.normalize ? warp_sum(dot) / divisor : 0;
  const auto grad_s = [&](int64_t e) {
    return g.taken(t, e) ? (g.grad(t, e) - shift) / divisor : 0;
  };
  const bool softmax = g.a.rule.score == Score::kSoftmax;
  float mean = 0;
  for (int64_t e = lane_of_thread(); softmax && e < E; e += kWarpLanes) {
    mean += score_at(e).s * grad_s(e);
  }
  mean = warp_sum(mean);
  const float squared = g.grad_squares == nullptr ? 0 : 2 * *g.grad_squares * row.lse();
  for (int64_t e = lane_of_thread(); e < E; e += kWarpLanes) {
    const float z = static_cast<float>(g.logits(t, e));
    g.out(t, e) =
        static_cast<T>(score_at(e).slope * (grad_s(e) - mean) + squared * softmax_of(row, z));
  }
}

unsigned grid(int64_t blocks) {
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMaxBlocks));
}

}  // namespace

void expert_choice_cuda(const ExpertChoice& a, cudaStream_t stream) {
  validate(a);
  TROUPE_CHECK(a.workspace != nullptr, "workspace of", workspace_bytes(a), "bytes");
  const Workspace work = expert_choice_detail::workspace(a);
  if (a.logits.rows > 0) {
    dispatch_float(a.logits.dtype, [&]<class T>() {
      score_kernel<T><<<grid(work.blocks), kThreads, 0, stream>>>(a, a.logits.as<T>(), work);
    });
    TROUPE_LAUNCH_CHECK(stream);
  }
  limit_kernel<<<grid(a.logits.cols), kColumnThreads, 0, stream>>>(a, work);
  TROUPE_LAUNCH_CHECK(stream);
  weigh_kernel<<<grid(work.blocks), kThreads, 0, stream>>>(a, a.weights.as<float>(),
                                                           a.lse_squares.as<float>().data, work);
  TROUPE_LAUNCH_CHECK(stream);
}

void expert_choice_backward_cuda(const ExpertChoiceBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.logits.rows == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(a.logits.rows, kTokensPerBlock));
  dispatch_float(a.logits.dtype, [&]<class T>() {
    Gradient<T> g{a, a.logits.as<T>(), a.grad_logits.as<T>(), {}, nullptr};
    if (a.grad_weights.data != nullptr) g.grad_weights = a.grad_weights.as<float>();
    if (a.grad_lse_squares.data != nullptr) g.grad_squares = a.grad_lse_squares.as<float>().data;
    backward_kernel<T><<<blocks, kThreads, 0, stream>>>(g);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
