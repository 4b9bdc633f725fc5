// The router beyond the range that a warp can keep in registers: many experts, choices or groups.
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/route/route_device.cuh"

namespace troupe::route_detail {
namespace {

constexpr int kThreads = 256;

// A block's work on one token after another. A row's keys are in the workspace.
template <class T>
class BlockRouter {
 public:
  __device__ BlockRouter(const RouteRows<T>& rows, const Partials& out)
      : rows_(rows),
        a_(rows.a),
        E_(static_cast<int>(rows.logits.cols)),
        K_(static_cast<int>(a_.rule.choices)) {
    const int64_t base = int64_t{blockIdx.x} * E_;
    counts_ = out.counts + base;
    if (out.plain_counts != nullptr) plain_counts_ = out.plain_counts + base;
    if (out.probs != nullptr) probs_ = out.probs + base;
    keys_ = out.keys + base;
    group_keys_ = out.group_keys + blockIdx.x * a_.rule.groups;
    for (int e = threadIdx.x; e < E_; e += kThreads) {
      counts_[e] = 0;
      if (plain_counts_ != nullptr) plain_counts_[e] = 0;
      if (probs_ != nullptr) probs_[e] = 0;
    }
    __syncthreads();
  }

  __device__ void route(int64_t t) {
    if (a_.valid != nullptr && a_.valid[t] == 0) return skip(t);
    top_ = block_top(t);
    exp_sum_ = block_total([&](int e) { return expf(logit(t, e) - top_); });
    const float lse = top_ + logf(exp_sum_);
    if (probs_ != nullptr) add_probs(t);
    const bool sound = choose(t);
    weigh(t, sound && !isnan(lse));
    if (probs_ != nullptr && plain_counts_ != nullptr) count_plain(t);
    if (threadIdx.x == 0) {
      rows_.lse[t] = lse;
      totals_.lse_squares += static_cast<double>(lse) * lse;
      ++totals_.tokens;
    }
    __syncthreads();
  }

  __device__ const ChunkTotals& totals() const { return totals_; }

 private:
  __device__ void skip(int64_t t) {
    for (int j = threadIdx.x; j < K_; j += kThreads) {
      a_.ids[t * K_ + j] = -1;
      rows_.weights(t, j) = 0;
    }
    if (threadIdx.x == 0) rows_.lse[t] = 0;
  }

  __device__ float logit(int64_t t, int e) const { return static_cast<float>(rows_.logits(t, e)); }
  __device__ float score(int64_t t, int e) const {
    const float z = logit(t, e);
    return rows_.is_softmax() ? expf(z - top_) / exp_sum_
                              : static_cast<float>(scores::score_of(a_.rule.score, z));
  }
  // What the plain choice goes by.
  __device__ float plain_value(int64_t t, int e) const {
    return rows_.is_softmax() ? logit(t, e) : score(t, e);
  }

  __device__ float block_top(int64_t t) const {
    __shared__ float scratch[kThreads / kWarpLanes];
    float top = -INFINITY;
    for (int e = threadIdx.x; e < E_; e += kThreads) top = fmaxf(top, logit(t, e));
    return block_max<kThreads>(top, scratch);
  }
  __device__ float block_total(const auto& f) const {
    __shared__ float scratch[kThreads / kWarpLanes];
    float sum = 0;
    for (int e = threadIdx.x; e < E_; e += kThreads) sum += f(e);
    return block_sum<kThreads>(sum, scratch);
  }

  __device__ void add_probs(int64_t t) {
    const auto value = [&](int e) { return score(t, e); };
    const float scale = rows_.is_softmax() ? 1 : 1 / (block_total(value) + scores::kTiny);
    for (int e = threadIdx.x; e < E_; e += kThreads) probs_[e] += value(e) * scale;
  }

  // The ids of the K largest keys, in order, to each(j, id) on thread 0.
  __device__ void take_all(const auto& each) const {
    __shared__ uint64_t scratch[kThreads / kWarpLanes];
    uint64_t last = ~uint64_t{0};
    for (int j = 0; j < K_; ++j) {
      last =
          block_max_ranked<kThreads>(next_ranked(keys_, E_, last, threadIdx.x, kThreads), scratch);
      if (threadIdx.x == 0) each(j, index_of(last));
    }
  }

  __device__ bool choose(int64_t t) {
    if (a_.given_ids != nullptr) return take_given(t);
    for (int e = threadIdx.x; e < E_; e += kThreads) {
      float x = a_.beta != nullptr ? logit(t, e) - a_.beta[e] : plain_value(t, e);
      if (a_.bias != nullptr) x += a_.bias[e];
      keys_[e] = sort_key(x);
    }
    __syncthreads();
    if (a_.rule.groups > 1) close_groups(t);
    take_all([&](int j, int id) {
      a_.ids[t * K_ + j] = id;
      ++counts_[id];
    });
    __syncthreads();
    return true;
  }

  __device__ bool take_given(int64_t t) {
    const int32_t* ids = a_.given_ids + t * K_;
    bool sound = true;
    for (int j = threadIdx.x; j < K_; j += kThreads) {
      const bool exists = 0 <= ids[j] && ids[j] < E_;
      bool first = true;
      for (int i = 0; i < j; ++i) first = first && ids[i] != ids[j];
      sound = sound && exists && first;
      a_.ids[t * K_ + j] = exists ? ids[j] : -1;
      if (exists) atomicAdd(&counts_[ids[j]], 1);  // Integer, hence the same in any order.
    }
    return __syncthreads_and(sound) != 0;
  }

  // A thread judges a group after another; then the a best are found by going through their keys.
  __device__ void close_groups(int64_t t) {
    __shared__ uint64_t scratch[kThreads / kWarpLanes];
    const int groups = static_cast<int>(a_.rule.groups), size = E_ / groups;
    for (int g = threadIdx.x; g < groups; g += kThreads) {
      group_keys_[g] = sort_key(group_score(t, g * size, size));
    }
    __syncthreads();
    uint64_t last = ~uint64_t{0};
    for (int i = 0; i < a_.rule.keep_groups; ++i) {
      last = block_max_ranked<kThreads>(
          next_ranked(group_keys_, groups, last, threadIdx.x, kThreads), scratch);
    }
    for (int e = threadIdx.x; e < E_; e += kThreads) {
      if (ranked(group_keys_[e / size], e / size) < last) keys_[e] = 0;
    }
    __syncthreads();
  }

  __device__ float group_score(int64_t t, int begin, int size) const {
    float sum = 0;
    uint64_t last = ~uint64_t{0};
    for (int i = 0; i < a_.rule.group_best; ++i) {
      uint64_t best = 0;
      for (int e = begin; e < begin + size; ++e) {
        const uint64_t next = ranked(group_key(t, e), e);
        if (next < last && next > best) best = next;
      }
      sum += value_of_key(key_of(best));
      last = best;
    }
    return sum;
  }
  __device__ uint32_t group_key(int64_t t, int e) const {
    if (!rows_.groups_by_score()) return keys_[e];
    return sort_key(static_cast<float>(scores::exp_negative(double{logit(t, e)} - top_)));
  }

  __device__ void weigh(int64_t t, bool sound) {
    __shared__ float scratch[kThreads / kWarpLanes];
    const OverBlock<kThreads> over{K_, scratch};
    const bool chosen = a_.rule.weighting == Weighting::kChosen;
    const int32_t* ids = a_.ids + t * K_;
    const auto value = [&](int64_t j) {
      return !sound ? NAN : chosen ? logit(t, ids[j]) : score(t, ids[j]);
    };
    const auto norm = norm_of<float>(a_.rule, over, value);
    for (int j = threadIdx.x; j < K_; j += kThreads) {
      rows_.weights(t, j) = a_.rule.scale * weight_of(a_.rule, norm, value(j));
    }
    const float kept = over.sum([&](int j) { return ids[j] < 0 ? 0.0f : score(t, ids[j]); });
    totals_.kept_scores += kept;
  }

  __device__ void count_plain(int64_t t) {
    for (int e = threadIdx.x; e < E_; e += kThreads) keys_[e] = sort_key(plain_value(t, e));
    __syncthreads();
    take_all([&](int, int id) { ++plain_counts_[id]; });
  }

  const RouteRows<T>& rows_;
  const Route& a_;
  const int E_, K_;
  int32_t* counts_ = nullptr;
  int32_t* plain_counts_ = nullptr;
  float* probs_ = nullptr;
  uint32_t* keys_ = nullptr;
  uint32_t* group_keys_ = nullptr;
  float top_ = 0, exp_sum_ = 1;
  ChunkTotals totals_ = {};
};

// A block a chunk, one token at a time; its row is read K times.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)  // As route.cu's: without the 2 it spills.
    route_slow_kernel(RouteRows<T> rows, Chunks chunks, Partials out) {
  const Chunks::Span span = chunks.span(blockIdx.x);
  BlockRouter<T> router(rows, out);
  for (int64_t t = span.begin; t < span.end; ++t) router.route(t);
  if (threadIdx.x == 0) out.totals[blockIdx.x] = router.totals();
}

}  // namespace

template <class T>
void route_rows_slow(const RouteRows<T>& rows, const RouteLaunch& launch) {
  const auto blocks = static_cast<unsigned>(launch.chunks.count);
  route_slow_kernel<<<blocks, kThreads, 0, launch.stream>>>(rows, launch.chunks, launch.partials);
  TROUPE_LAUNCH_CHECK(launch.stream);
}

template void route_rows_slow(const RouteRows<float>&, const RouteLaunch&);
template void route_rows_slow(const RouteRows<BF16>&, const RouteLaunch&);
template void route_rows_slow(const RouteRows<F16>&, const RouteLaunch&);

}  // namespace troupe::route_detail
