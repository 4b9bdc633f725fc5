#include <bit>
#include <cstdint>
#include <type_traits>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/route/route_device.cuh"

namespace troupe {
namespace {

using route_detail::kFastChoices;
using scores::kTiny;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kSlowThreads = 256;

template <class T>
struct Rows {
  RouteBackward a;
  Mat<const T> logits;
  Mat<T> out;
  Mat<const float> grad_weights, grad_probs;
  const float* grad_squares;
  int64_t length;  // tokens of a sequence

  __host__ __device__ bool is_softmax() const { return a.rule.score == Score::kSoftmax; }
  __device__ bool of_logits() const { return a.rule.weighting == Weighting::kChosen; }
  __device__ bool skips(int64_t t) const { return a.valid != nullptr && a.valid[t] == 0; }
  __device__ float logit(int64_t t, int e) const { return static_cast<float>(logits(t, e)); }
  __device__ const float* grad_probs_of(int64_t t) const {
    return grad_probs.data == nullptr ? nullptr : grad_probs.row(t / length);
  }
};

// What a row's gradient needs beside its logits; the same on all threads of the row.
struct RowSums {
  float top, exp_scale;  // of the softmax, exp(z - top) exp_scale
  float score_sum;       // of the other scores, and what divides; 1 for the softmax
  float mean;            // sum G r; for the softmax plus sum c s[I]
  float squared;         // 2 grad_lse_squares lse
};

// dz of an expert; c is the gradient of its chosen value, 0 if it was not chosen. G + c comes
// before the subtraction: with E = 1 the result is exactly 0 (L5).
//
// kSoftmax, here and below: of no other score, so that nothing of theirs is compiled in.
template <bool kSoftmax, class T>
__device__ float logit_grad(const Rows<T>& r, const RowSums& s, float z, float G, float c) {
  const float softmax = expf(z - s.top) * s.exp_scale;
  if (r.of_logits()) return softmax * (G - s.mean + s.squared) + c;
  if (kSoftmax || r.is_softmax()) return softmax * (G + c - s.mean + s.squared);
  const auto slope = static_cast<float>(scores::slope_of(r.a.rule.score, z).ds);
  return slope * ((G - s.mean) / s.score_sum + c) + s.squared * softmax;
}

struct Choice {
  int id;
  float value;
};

template <bool kSoftmax, class T>
__device__ Choice choice_at(const Rows<T>& r, const RowSums& s, int64_t t, int j) {
  const int id = r.a.ids[t * r.a.rule.choices + j];
  if (id < 0) return {id, NAN};
  const float z = r.logit(t, id);
  if (r.of_logits()) return {id, z};
  if (kSoftmax || r.is_softmax()) return {id, expf(z - s.top) * s.exp_scale};
  return {id, static_cast<float>(scores::score_of(r.a.rule.score, z))};
}

// One token of a warp: the row in registers, a choice on each of the first K lanes. `scattered`:
// shared memory of as many floats as the row has in registers.
template <class T, int kPerLane, bool kSoftmax>
class WarpGradient {
  using At = WarpRow<kPerLane>;

 public:
  __device__ WarpGradient(const Rows<T>& r, bool packed, float* scattered)
      : r_(r),
        packed_(packed),
        scattered_(scattered),
        lane_(static_cast<int>(threadIdx.x % kWarpLanes)),
        E_(static_cast<int>(r.logits.cols)),
        K_(static_cast<int>(r.a.rule.choices)) {}

  __device__ void compute(int64_t t) {
    route_detail::load_row(r_.logits, t, packed_, d_);
    const float squares = r_.grad_squares == nullptr ? 0 : *r_.grad_squares;
    const float* G = r_.grad_probs_of(t);
    RowSums s = sums(G, squares);
    float chosen[kPerLane] = {};  // the gradients of the chosen values, at their experts
    if (r_.grad_weights.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) scattered_[At::expert(i)] = 0;
      __syncwarp();
      const Choice mine = lane_ < K_ ? choice_at<kSoftmax>(r_, s, t, lane_) : Choice{-1, 0};
      const float c = choice_grad(t, mine);
      if (is_softmax() && !r_.of_logits()) {
        s.mean += route_detail::OverWarp{K_}.sum([&](int) { return mine.value * c; });
      }
      if (mine.id >= 0) scattered_[mine.id] = c;  // a token's choices differ
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) chosen[i] = scattered_[At::expert(i)];
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      d_[i] = logit_grad<kSoftmax>(r_, s, d_[i], grad_prob(G, At::expert(i)), chosen[i]);
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) d_[i] = 0;
  }

  __device__ void store(int64_t t) const {
    T* out = r_.out.row(t);
#pragma unroll
    for (int i = 0; i < kPerLane; i += At::kVec) {
      const int e = At::expert(i);
      if (packed_ && e + At::kVec <= E_) {
        Pack<T, At::kVec> pack;
#pragma unroll
        for (int j = 0; j < At::kVec; ++j) pack.v[j] = static_cast<T>(d_[i + j]);
        store_pack(out + e, pack);
      } else {
#pragma unroll
        for (int j = 0; j < At::kVec; ++j) {
          if (e + j < E_) out[e + j] = static_cast<T>(d_[i + j]);
        }
      }
    }
  }

 private:
  __device__ bool is_softmax() const {
    return kSoftmax || r_.is_softmax();
  }

  __device__ float grad_prob(const float* G, int e) const {
    return G != nullptr && e < E_ ? G[e] : 0;
  }

  __device__ RowSums sums(const float* G, float squares) const {
    RowSums s{-INFINITY, 0, 0, 0, 0};
    float exp_sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) s.top = fmaxf(s.top, d_[i]);
    s.top = warp_max(s.top);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (At::expert(i) >= E_) continue;
      const float x = expf(d_[i] - s.top);
      const float score =
          is_softmax() ? x : static_cast<float>(scores::score_of(r_.a.rule.score, d_[i]));
      exp_sum += x;
      s.score_sum += score;
      s.mean += grad_prob(G, At::expert(i)) * score;
    }
    exp_sum = warp_sum(exp_sum);
    s.exp_scale = 1 / exp_sum;
    s.score_sum = is_softmax() ? exp_sum : warp_sum(s.score_sum) + kTiny;
    s.mean = G == nullptr ? 0 : warp_sum(s.mean) / s.score_sum;
    s.squared = squares == 0 ? 0 : 2 * squares * (s.top + logf(exp_sum));
    return s;
  }

  // The gradient of this lane's chosen value.
  __device__ float choice_grad(int64_t t, const Choice& mine) const {
    const RouteRule& rule = r_.a.rule;
    const float g = lane_ < K_ ? rule.scale * r_.grad_weights(t, lane_) : 0;
    const route_detail::OverWarp over{K_};
    const auto norm = route_detail::norm_of<float>(rule, over, [&](int64_t) { return mine.value; });
    const float p = route_detail::weight_of(rule, norm, mine.value);
    const float dot = over.sum([&](int) { return g * p; });
    return route_detail::value_grad(rule, norm, p, g, dot);
  }

  const Rows<T>& r_;
  const bool packed_;
  float* const scattered_;
  const int lane_, E_, K_;
  float d_[kPerLane];  // logits, then their gradients
};

// One warp a token. Lane j computes what the j-th choice adds and hands it to the lane that holds
// its expert; the row is read once and written once, sixteen bytes at a time where it is aligned.
template <class T, int kPerLane, bool kSoftmax>
__global__ void __launch_bounds__(kThreads) backward_kernel(Rows<T> r, bool packed) {
  __shared__ float scattered[kWarps][kPerLane * kWarpLanes];
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  if (t >= r.logits.rows) return;  // Whole warps leave together.
  WarpGradient<T, kPerLane, kSoftmax> row(r, packed, scattered[threadIdx.x / kWarpLanes]);
  if (r.skips(t)) {
    row.clear();
  } else {
    row.compute(t);
  }
  row.store(t);
}

// One block a token, for any E and K: the row is read a few times, from the cache.
template <class T>
__global__ void __launch_bounds__(kSlowThreads, 2)  // As route.cu's: without the 2 it spills.
    backward_slow_kernel(Rows<T> r) {
  __shared__ float scratch[kSlowThreads / kWarpLanes];
  const int64_t t = blockIdx.x;
  const int E = static_cast<int>(r.logits.cols), K = static_cast<int>(r.a.rule.choices);
  if (r.skips(t)) {
    for (int e = threadIdx.x; e < E; e += kSlowThreads) r.out(t, e) = T(0.0f);
    return;
  }
  RowSums s{-INFINITY, 0, 0, 0, 0};
  float exp_sum = 0;
  const float* G = r.grad_probs_of(t);
  const auto grad_prob = [&](int e) { return G == nullptr ? 0 : G[e]; };
  for (int e = threadIdx.x; e < E; e += kSlowThreads) s.top = fmaxf(s.top, r.logit(t, e));
  s.top = block_max<kSlowThreads>(s.top, scratch);
  for (int e = threadIdx.x; e < E; e += kSlowThreads) {
    const float z = r.logit(t, e), x = expf(z - s.top);
    const float score =
        r.is_softmax() ? x : static_cast<float>(scores::score_of(r.a.rule.score, z));
    exp_sum += x;
    s.score_sum += score;
    s.mean += grad_prob(e) * score;
  }
  exp_sum = block_sum<kSlowThreads>(exp_sum, scratch);
  s.exp_scale = 1 / exp_sum;
  s.score_sum = r.is_softmax() ? exp_sum : block_sum<kSlowThreads>(s.score_sum, scratch) + kTiny;
  s.mean = block_sum<kSlowThreads>(s.mean, scratch) / s.score_sum;
  const float squares = r.grad_squares == nullptr ? 0 : *r.grad_squares;
  s.squared = 2 * squares * (s.top + logf(exp_sum));

  const route_detail::OverBlock<kSlowThreads> over{K, scratch};
  const auto value = [&](int64_t j) {
    return choice_at<false>(r, s, t, static_cast<int>(j)).value;
  };
  const auto grad = [&](int64_t j) { return r.a.rule.scale * r.grad_weights(t, j); };
  route_detail::Norm<float> norm{1, 1};
  float dot = 0;
  const auto c = [&](int64_t j) {
    const float p = route_detail::weight_of(r.a.rule, norm, value(j));
    return route_detail::value_grad(r.a.rule, norm, p, grad(j), dot);
  };
  const bool weighs = r.grad_weights.data != nullptr;
  if (weighs) {
    norm = route_detail::norm_of<float>(r.a.rule, over, value);
    dot = over.sum(
        [&](int j) { return grad(j) * route_detail::weight_of(r.a.rule, norm, value(j)); });
    if (r.is_softmax() && !r.of_logits())
      s.mean += over.sum([&](int j) { return value(j) * c(j); });
  }
  for (int e = threadIdx.x; e < E; e += kSlowThreads) {
    r.out(t, e) = static_cast<T>(logit_grad<false>(r, s, r.logit(t, e), grad_prob(e), 0));
  }
  __syncthreads();
  if (!weighs) return;
  // A second write of the chosen elements, from the unrounded sum.
  for (int j = threadIdx.x; j < K; j += kSlowThreads) {
    const Choice mine = choice_at<false>(r, s, t, j);
    if (mine.id < 0) continue;
    r.out(t, mine.id) =
        static_cast<T>(logit_grad<false>(r, s, r.logit(t, mine.id), grad_prob(mine.id), c(j)));
  }
}

template <bool kSoftmax, class T>
void launch_fast(const Rows<T>& rows, cudaStream_t stream) {
  const int64_t tokens = rows.logits.rows, E = rows.logits.cols;
  const auto per_lane = std::bit_ceil(static_cast<unsigned>(ceil_div(E, kWarpLanes)));
  const auto blocks = static_cast<unsigned>(ceil_div(tokens, kWarps));
  const bool packed = rows_are_packed(rows.a.logits) && rows_are_packed(rows.a.grad_logits.read());
  dispatch_int<1, 2, 4, 8, 16, 32>(static_cast<int>(per_lane), [&]<int kPerLane>() {
    backward_kernel<T, kPerLane, kSoftmax><<<blocks, kThreads, 0, stream>>>(rows, packed);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

template <class T>
void launch(const Rows<T>& rows, cudaStream_t stream) {
  if (rows.logits.cols > route_detail::kFastExperts || rows.a.rule.choices > kFastChoices) {
    const auto tokens = static_cast<unsigned>(rows.logits.rows);
    backward_slow_kernel<<<tokens, kSlowThreads, 0, stream>>>(rows);
    return TROUPE_LAUNCH_CHECK(stream);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (rows.is_softmax()) return launch_fast<true>(rows, stream);
  }
  launch_fast<false>(rows, stream);
}

Mat<const float> floats(const MatRef& m) {
  return m.data == nullptr ? Mat<const float>{} : m.as<float>();
}

}  // namespace

void route_backward_cuda(const RouteBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.logits.rows == 0) return;
  dispatch_float(a.logits.dtype, [&]<class T>() {
    launch(
        Rows<T>{a, a.logits.as<T>(), a.grad_logits.as<T>(), floats(a.grad_weights),
                floats(a.grad_probs), floats(a.grad_lse_squares).data, a.logits.rows / a.sequences},
        stream);
  });
}

}  // namespace troupe
