#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/route/geometry.h"
#include "troupe/kernels/route/route_device.cuh"

namespace troupe {
namespace {

using route_detail::Chunks;
using route_detail::ChunkTotals;
using route_detail::Partials;
using route_detail::RouteLaunch;
using route_detail::RouteRows;
using scores::kTiny;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kFinishColumns = 32;  // of a block, with 32 rows of threads
constexpr int kFinishThreads = 1024;

// Shared memory: counts and plain counts of the block [E] each, then [kWarps, E + E / 32]: a
// warp's keys while it chooses groups (skewed against bank conflicts), and its sums at the end.
struct Shared {
  __device__ Shared(uint32_t* memory, int experts)
      : counts(reinterpret_cast<int32_t*>(memory)),
        plain_counts(counts + experts),
        rows(memory + 2 * experts) {}
  static __host__ __device__ int row_length(int experts) { return experts + experts / 32 + 1; }
  static int64_t bytes(int64_t experts) {
    return 4 * (2 * experts + kWarps * row_length(static_cast<int>(experts)));
  }
  int32_t* counts;
  int32_t* plain_counts;
  uint32_t* rows;
};

__device__ __forceinline__ int skewed(int e) {
  return e + e / 32;
}

// One warp's work on one token after another; sums of r stay in registers. kSoftmax: nothing of the
// other scores is compiled in.
template <class T, int kPerLane, bool kSoftmax>
class WarpRouter {
  using At = WarpRow<kPerLane>;

 public:
  __device__ WarpRouter(const RouteRows<T>& rows, Shared shared)
      : rows_(rows),
        a_(rows.a),
        lane_(static_cast<int>(threadIdx.x % kWarpLanes)),
        E_(static_cast<int>(rows.logits.cols)),
        K_(static_cast<int>(rows.a.rule.choices)),
        shared_(shared),
        row_(shared.rows + threadIdx.x / kWarpLanes * Shared::row_length(E_)) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) probs_[i] = 0;
  }

  __device__ void route(int64_t t) {
    if (a_.valid != nullptr && a_.valid[t] == 0) return skip(t);
    float v[kPerLane];
    route_detail::load_row(rows_.logits, t, rows_.packed, v);
    const RowExp exp = exponentials(v);
    const float lse = exp.top + logf(exp.sum);
    if (!is_softmax()) {
      const float sum = to_scores(v);
      if (rows_.has_sums()) add_scores(v, sum);
    } else if (rows_.has_sums()) {
      add_softmax(v, exp);
    }
    const Choice chosen = choose(t, v, exp.top);
    if (lane_ < K_) a_.ids[t * K_ + lane_] = chosen.id;
    if (chosen.id >= 0 && lane_ < K_) atomicAdd(&shared_.counts[chosen.id], 1);
    weigh(t, chosen, exp, lse);
    if (lane_ == 0) {
      rows_.lse[t] = lse;
      totals_.lse_squares += static_cast<double>(lse) * lse;
      ++totals_.tokens;
    }
    if (rows_.has_sums() && !a_.is_plain()) count_plain(v);
  }

  __device__ void store_probs() const {
    float* row = reinterpret_cast<float*>(row_);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (At::expert(i) < E_) row[At::expert(i)] = probs_[i];
    }
  }
  __device__ const ChunkTotals& totals() const {
    return totals_;
  }

 private:
  __device__ bool is_softmax() const {
    return kSoftmax || rows_.is_softmax();
  }

  struct RowExp {
    float top, sum;
  };
  struct Choice {
    int id;  // lane j: the j-th choice
    bool sound;
  };

  __device__ void skip(int64_t t) {
    if (lane_ < K_) {
      a_.ids[t * K_ + lane_] = -1;
      rows_.weights(t, lane_) = 0;
    }
    if (lane_ == 0) rows_.lse[t] = 0;
  }

  __device__ RowExp exponentials(const float (&v)[kPerLane]) const {
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) top = fmaxf(top, v[i]);
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum += At::expert(i) < E_ ? expf(v[i] - top) : 0;
    return {top, warp_sum(sum)};
  }

  __device__ void add_softmax(const float (&v)[kPerLane], RowExp exp) {
    const float scale = 1 / exp.sum;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (At::expert(i) < E_) probs_[i] += expf(v[i] - exp.top) * scale;
    }
  }

  __device__ float to_scores(float (&v)[kPerLane]) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      v[i] = static_cast<float>(scores::score_of(a_.rule.score, v[i]));
      sum += At::expert(i) < E_ ? v[i] : 0;
    }
    return warp_sum(sum);
  }

  __device__ void add_scores(const float (&v)[kPerLane], float sum) {
    const float scale = 1 / (sum + kTiny);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (At::expert(i) < E_) probs_[i] += v[i] * scale;
    }
  }

  // v: logits for the softmax, else scores.
  __device__ Choice choose(int64_t t, const float (&v)[kPerLane], float top) const {
    if (a_.given_ids != nullptr) return given(t);
    WarpKeys<kPerLane> keys;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = At::expert(i);
      float x = v[i];
      if (e < E_ && a_.beta != nullptr) x = static_cast<float>(rows_.logits(t, e)) - a_.beta[e];
      if (e < E_ && a_.bias != nullptr) x += a_.bias[e];
      keys.key[i] = e < E_ ? sort_key(x) : 0;
    }
    if (a_.rule.groups > 1) close_groups(v, top, keys);
    return {take_all(keys), true};
  }

  __device__ int take_all(WarpKeys<kPerLane>& keys) const {
    int mine = -1;
    for (int j = 0; j < K_; ++j) {
      const int id = keys.take();
      if (lane_ == j) mine = id;
    }
    return mine;
  }

  __device__ Choice given(int64_t t) const {
    const int id = lane_ < K_ ? a_.given_ids[t * K_ + lane_] : -2 - lane_;
    const bool exists = 0 <= id && id < E_;
    const unsigned same = __match_any_sync(kWholeWarp, id);
    const bool fault = lane_ < K_ && (!exists || __popc(same) > 1);
    return {exists ? id : -1, !__any_sync(kWholeWarp, fault)};
  }

  // Lane g judges group g from the row's values in shared memory.
  __device__ void close_groups(const float (&v)[kPerLane], float top,
                               WarpKeys<kPerLane>& keys) const {
    const bool by_score = rows_.groups_by_score();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (At::expert(i) >= E_) continue;
      row_[skewed(At::expert(i))] =
          by_score ? sort_key(static_cast<float>(scores::exp_negative(double{v[i]} - top)))
                   : keys.key[i];
    }
    __syncwarp();
    const int groups = static_cast<int>(a_.rule.groups), size = E_ / groups;
    const uint32_t key = lane_ < groups ? sort_key(group_score(lane_ * size, size)) : 0;
    uint64_t mine = lane_ < groups ? ranked(key, lane_) : 0;
    unsigned open = 0;
    for (int i = 0; i < a_.rule.keep_groups; ++i) {
      const int best = index_of(warp_max_ranked(mine));
      open |= 1u << best;
      if (lane_ == best) mine = 0;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (At::expert(i) < E_ && !(open >> At::expert(i) / size & 1)) keys.key[i] = 0;
    }
  }

  __device__ float group_score(int begin, int size) const {
    float sum = 0;
    uint64_t last = ~uint64_t{0};
    for (int i = 0; i < a_.rule.group_best; ++i) {
      uint64_t best = 0;
      for (int e = begin; e < begin + size; ++e) {
        const uint64_t next = ranked(row_[skewed(e)], e);
        if (next < last && next > best) best = next;
      }
      sum += value_of_key(key_of(best));
      last = best;
    }
    return sum;
  }

  __device__ void weigh(int64_t t, Choice chosen, RowExp exp, float lse) {
    const bool real = lane_ < K_ && chosen.id >= 0;
    const float z = real ? static_cast<float>(rows_.logits(t, chosen.id)) : 0;
    const float s = !real          ? 0
                    : is_softmax() ? expf(z - exp.top) / exp.sum
                                   : static_cast<float>(scores::score_of(a_.rule.score, z));
    const bool sound = chosen.sound && !isnan(lse);
    const float worth = !sound ? NAN : a_.rule.weighting == Weighting::kChosen ? z : s;
    const route_detail::OverWarp over{K_};
    const auto value = [&](int64_t) { return worth; };
    const auto norm = route_detail::norm_of<float>(a_.rule, over, value);
    const float w = a_.rule.scale * route_detail::weight_of(a_.rule, norm, worth);
    if (lane_ < K_) rows_.weights(t, lane_) = w;
    totals_.kept_scores += warp_sum(s);
  }

  __device__ void count_plain(const float (&v)[kPerLane]) {
    WarpKeys<kPerLane> keys;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) keys.key[i] = At::expert(i) < E_ ? sort_key(v[i]) : 0;
    const int id = take_all(keys);
    if (id >= 0) atomicAdd(&shared_.plain_counts[id], 1);
  }

  const RouteRows<T>& rows_;
  const Route& a_;
  const int lane_, E_, K_;
  const Shared shared_;
  uint32_t* const row_;
  float probs_[kPerLane];
  ChunkTotals totals_ = {};
};

// A warp's sums to the block's, and those to the workspace.
template <class Router>
__device__ void store_block(const Router& router, Shared shared, int experts, const Partials& out) {
  __shared__ ChunkTotals totals[kWarps];
  if (threadIdx.x % kWarpLanes == 0) totals[threadIdx.x / kWarpLanes] = router.totals();
  if (out.probs != nullptr) router.store_probs();
  __syncthreads();
  const int64_t base = int64_t{blockIdx.x} * experts;
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    out.counts[base + e] = shared.counts[e];
    if (out.plain_counts != nullptr) out.plain_counts[base + e] = shared.plain_counts[e];
    if (out.probs == nullptr) continue;
    const float* column = reinterpret_cast<const float*>(shared.rows) + e;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += column[w * Shared::row_length(experts)];
    out.probs[base + e] = sum;
  }
  if (threadIdx.x != 0) return;
  ChunkTotals sum = {};
  for (const ChunkTotals& t : totals) {
    sum.lse_squares += t.lse_squares;
    sum.kept_scores += t.kept_scores;
    sum.tokens += t.tokens;
  }
  out.totals[blockIdx.x] = sum;
}

// A block a chunk, a warp a token. The logits are read once, into registers, where the K rounds of
// arg-max and the sums of r stay; bound by the rounds' latency, hence many small blocks.
// Without the second bound ptxas aims at three blocks and spills for it.
template <class T, int kPerLane, bool kSoftmax>
__global__ void __launch_bounds__(kThreads, kPerLane <= 16 ? 2 : 1)
    route_kernel(RouteRows<T> rows, Chunks chunks, Partials out) {
  extern __shared__ uint32_t memory[];
  const int experts = static_cast<int>(rows.logits.cols);
  const Shared shared(memory, experts);
  for (int i = threadIdx.x; i < 2 * experts; i += kThreads) memory[i] = 0;
  __syncthreads();
  const Chunks::Span span = chunks.span(blockIdx.x);
  WarpRouter<T, kPerLane, kSoftmax> router(rows, shared);
  for (int64_t t = span.begin + threadIdx.x / kWarpLanes; t < span.end; t += kWarps) {
    router.route(t);
  }
  store_block(router, shared, experts, out);
}

// ---- the second stage: chunks to sums

template <class V>
struct SumScratch {
  V part[kFinishThreads / kFinishColumns][kFinishColumns + 1];
};

// Sums column e of data [.., E] over rows [first, last): each warp every 32nd row, then the warps.
// The result is warp 0's.
template <class V, class P>
__device__ V column_sum(const P* data, int64_t first, int64_t last, int64_t E,
                        SumScratch<V>& scratch) {
  const int lane = static_cast<int>(threadIdx.x % kFinishColumns);
  const int warp = static_cast<int>(threadIdx.x / kFinishColumns);
  const int64_t e = int64_t{blockIdx.x} * kFinishColumns + lane;
  V sum = 0;
  for (int64_t c = first + warp; e < E && c < last; c += kFinishThreads / kFinishColumns) {
    sum += data[c * E + e];
  }
  scratch.part[warp][lane] = sum;
  __syncthreads();
  V total = 0;
  for (int w = 0; warp == 0 && w < kFinishThreads / kFinishColumns; ++w) {
    total += scratch.part[w][lane];
  }
  __syncthreads();
  return total;
}

struct Sums {
  float* probs;
  int64_t* plain_counts;
  int64_t* counts;
  int64_t* tokens;
  float* lse_squares;
  float* kept_scores;
};

__device__ void finish_totals(const Chunks& chunks, const ChunkTotals* totals, const Sums& out) {
  __shared__ double scratch[kFinishThreads / kWarpLanes];
  double squares = 0, scores = 0;
  for (int64_t c = threadIdx.x; c < chunks.count; c += kFinishThreads) {
    squares += totals[c].lse_squares;
    scores += totals[c].kept_scores;
  }
  squares = block_sum<kFinishThreads>(squares, scratch);
  scores = block_sum<kFinishThreads>(scores, scratch);
  if (threadIdx.x != 0) return;
  *out.lse_squares = static_cast<float>(squares);
  *out.kept_scores = static_cast<float>(scores);
}

__device__ void finish_tokens(const Chunks& chunks, const ChunkTotals* totals, int64_t b,
                              int64_t* tokens) {
  __shared__ int64_t scratch[kFinishThreads / kWarpLanes];
  int64_t sum = 0;
  for (int64_t c = threadIdx.x; c < chunks.per_sequence; c += kFinishThreads) {
    sum += totals[b * chunks.per_sequence + c].tokens;
  }
  sum = block_sum<kFinishThreads>(sum, scratch);
  if (threadIdx.x == 0) tokens[b] = sum;
}

// Block (x, b) sums 32 columns of sequence b; b = B: of all, what is not by sequence.
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(Partials in, Chunks chunks, int64_t sequences, int64_t E, Sums out) {
  __shared__ SumScratch<double> floats;
  __shared__ SumScratch<int64_t> integers;
  const int64_t e = int64_t{blockIdx.x} * kFinishColumns + threadIdx.x;
  const bool writes = threadIdx.x < kFinishColumns && e < E;
  for (int64_t b = blockIdx.y; b <= sequences; b += gridDim.y) {
    const int64_t first = b * chunks.per_sequence, last = first + chunks.per_sequence;
    if (b == sequences) {
      const int64_t count = column_sum(in.counts, 0, chunks.count, E, integers);
      if (writes) out.counts[e] = count;
      if (blockIdx.x == 0) finish_totals(chunks, in.totals, out);
      continue;
    }
    if (blockIdx.x == 0) finish_tokens(chunks, in.totals, b, out.tokens);
    if (out.probs == nullptr) continue;
    const double probs = column_sum(in.probs, first, last, E, floats);
    const int32_t* plain = in.plain_counts != nullptr ? in.plain_counts : in.counts;
    const int64_t count = column_sum(plain, first, last, E, integers);
    if (!writes) continue;
    out.probs[b * E + e] = static_cast<float>(probs);
    out.plain_counts[b * E + e] = count;
  }
}

void finish(const Route& a, const Partials& in, const Chunks& chunks, cudaStream_t stream) {
  const auto columns = static_cast<unsigned>(ceil_div(a.logits.cols, kFinishColumns));
  const auto rows = static_cast<unsigned>(std::min<int64_t>(a.sequences + 1, 1024));
  const Sums out{static_cast<float*>(a.probs.data),
                 a.plain_counts,
                 a.counts,
                 a.tokens,
                 static_cast<float*>(a.lse_squares.data),
                 static_cast<float*>(a.kept_scores.data)};
  finish_kernel<<<dim3(columns, rows), kFinishThreads, 0, stream>>>(in, chunks, a.sequences,
                                                                    a.logits.cols, out);
  TROUPE_LAUNCH_CHECK(stream);
}

template <bool kSoftmax, class T>
void route_rows_fast(const RouteRows<T>& rows, const RouteLaunch& launch) {
  const int64_t E = rows.logits.cols;
  const auto per_lane = std::bit_ceil(static_cast<unsigned>(ceil_div(E, kWarpLanes)));
  const auto blocks = static_cast<unsigned>(launch.chunks.count);
  dispatch_int<1, 2, 4, 8, 16, 32>(static_cast<int>(per_lane), [&]<int kPerLane>() {
    route_kernel<T, kPerLane, kSoftmax><<<blocks, kThreads, Shared::bytes(E), launch.stream>>>(
        rows, launch.chunks, launch.partials);
  });
  TROUPE_LAUNCH_CHECK(launch.stream);
}

}  // namespace

void route_cuda(const Route& a, cudaStream_t stream) {
  validate(a);
  TROUPE_CHECK(a.workspace != nullptr || a.logits.rows == 0, "workspace of", workspace_bytes(a));
  const RouteLaunch launch{route_detail::cut_for_blocks(a), route_detail::partials(a), stream};
  dispatch_float(a.logits.dtype, [&]<class T>() {
    const RouteRows<T> rows{a, a.logits.as<T>(), a.weights.as<float>(), a.lse.as<float>().data,
                            rows_are_packed(a.logits)};
    if (rows.logits.rows == 0) return;
    if (!route_detail::is_fast(a.rule, a.logits.cols)) {
      return route_detail::route_rows_slow(rows, launch);
    }
    if constexpr (std::is_same_v<T, float>) {
      if (a.rule.score == Score::kSoftmax) return route_rows_fast<true>(rows, launch);
    }
    route_rows_fast<false>(rows, launch);
  });
  finish(a, launch.partials, launch.chunks, stream);
}

}  // namespace troupe
