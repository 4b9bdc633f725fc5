// What the router's CUDA files share.
#pragma once

#include "troupe/core/device/cuda_stream.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/topk.cuh"
#include "troupe/kernels/route/geometry.h"
#include "troupe/kernels/route/weigh.h"

namespace troupe::route_detail {

// The choices of weigh.h, one a lane.
struct OverWarp {
  int choices;
  __device__ __forceinline__ float sum(const auto& f) const {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    return warp_sum(lane < choices ? f(lane) : 0.0f);
  }
  __device__ __forceinline__ float max(const auto& f) const {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    return warp_max(lane < choices ? f(lane) : -INFINITY);
  }
};

// The same, shared out over the threads of a block.
template <int kThreads>
struct OverBlock {
  int choices;
  float* shared;  // as block_sum has it
  __device__ float sum(const auto& f) const {
    float total = 0;
    for (int j = threadIdx.x; j < choices; j += kThreads) total += f(j);
    return block_sum<kThreads>(total, shared);
  }
  __device__ float max(const auto& f) const {
    float top = -INFINITY;
    for (int j = threadIdx.x; j < choices; j += kThreads) top = fmaxf(top, f(j));
    return block_max<kThreads>(top, shared);
  }
};

// A row in a warp's registers. Elements that do not exist are -inf.
template <int kPerLane, class T>
__device__ __forceinline__ void load_row(const Mat<const T>& from, int64_t t, bool packed,
                                         float (&v)[kPerLane]) {
  using At = WarpRow<kPerLane>;
  const T* row = from.row(t);
  const int columns = static_cast<int>(from.cols);
#pragma unroll
  for (int i = 0; i < kPerLane; i += At::kVec) {
    const int e = At::expert(i);
    if (packed && e + At::kVec <= columns) {
      const auto pack = load_pack<At::kVec>(row + e);
#pragma unroll
      for (int j = 0; j < At::kVec; ++j) v[i + j] = static_cast<float>(pack.v[j]);
    } else {
#pragma unroll
      for (int j = 0; j < At::kVec; ++j) {
        v[i + j] = e + j < columns ? static_cast<float>(row[e + j]) : -INFINITY;
      }
    }
  }
}

// The arguments with the types that kernels see.
template <class T>
struct RouteRows {
  Route a;
  Mat<const T> logits;
  Mat<float> weights;
  float* lse;
  bool packed;  // rows may be read in sixteen bytes

  __device__ bool has_sums() const { return a.probs.data != nullptr; }
  __device__ bool is_softmax() const { return a.rule.score == Score::kSoftmax; }
  // Is a group judged by s in units of the row's largest, and not by what is selected from?
  __device__ bool groups_by_score() const {
    return is_softmax() && a.rule.weighting != Weighting::kChosen;
  }
};

struct RouteLaunch {
  Chunks chunks;
  Partials partials;
  cudaStream_t stream;
};

template <class T>
void route_rows_slow(const RouteRows<T>& rows, const RouteLaunch& launch);

}  // namespace troupe::route_detail
