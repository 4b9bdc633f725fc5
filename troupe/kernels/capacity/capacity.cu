#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/capacity/capacity.h"
#include "troupe/kernels/capacity/token_weights.h"
#include "troupe/kernels/device/block_scan.cuh"

namespace troupe {
namespace {

using capacity_detail::Token;

constexpr int kThreads = 1024;      // of a block that owns an expert
constexpr int kTokenThreads = 128;  // of a block over tokens
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

// What decides C on the device: the rule and the mask.
__device__ int64_t capacity_of(const DropOverCapacity& a, int64_t n) {
  if (a.rule.factor == 0) return n;
  const double share = a.rule.factor * static_cast<double>(n) *
                       static_cast<double>(a.plan.choices) / static_cast<double>(a.plan.experts);
  if (share >= static_cast<double>(n)) return n;
  return min(n, max(a.rule.minimum, static_cast<int64_t>(ceil(share - 1e-6))));
}

// One block: n, C and how many are dropped.
__global__ void __launch_bounds__(kThreads) limit_kernel(DropOverCapacity a, int64_t* limit) {
  __shared__ int64_t scratch[kScanScratch];
  int64_t mine = 0;
  for (int64_t t = threadIdx.x; t < a.plan.tokens; t += kThreads) {
    mine += a.valid == nullptr || a.valid[t] != 0;
  }
  const int64_t C = capacity_of(a, block_scan(mine, scratch).total);
  int64_t over = 0;
  for (int64_t e = threadIdx.x; e < a.plan.experts; e += kThreads) {
    over += max(int64_t{0}, a.plan.counts[e] - C);
  }
  over = block_scan(over, scratch).total;
  if (threadIdx.x != 0) return;
  *limit = C;
  *a.dropped = over;
}

// Rises with the weight; a NaN as -inf, -0 as 0.
__device__ uint32_t sort_key(float w) {
  const uint32_t bits = __float_as_uint(isnan(w) ? -INFINITY : w + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The slots of one expert, by rising slot.
struct Segment {
  const int32_t* slots;
  const float* weights;
  int64_t choices, ld;
  int n;

  __device__ uint32_t key(int i) const {
    const int slot = slots[i];
    return sort_key(weights[slot / choices * ld + slot % choices]);
  }
};

struct Threshold {
  uint32_t key;  // of the last one kept
  int ties;      // how many with exactly this key are kept: those of lowest slot
};

// The C-th largest key, digit by digit from the top: a histogram of the digit over the keys that
// agree with the digits found so far. C < n.
__device__ Threshold find_threshold(const Segment& s, int C) {
  __shared__ int count[kDigits];
  __shared__ int scratch[kScanScratch];
  __shared__ int found[2];  // digit, keys above it
  Threshold t{0, C};
  uint32_t decided = 0;  // Mask of the digits found so far.
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    if (threadIdx.x < kDigits) count[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < s.n; i += kThreads) {
      const uint32_t key = s.key(i);
      if ((key & decided) == t.key) atomicAdd(&count[key >> shift & (kDigits - 1)], 1);
    }
    __syncthreads();
    const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);  // Largest first.
    const int here = digit >= 0 ? count[digit] : 0;
    const int above = block_scan(here, scratch).before;
    if (above < t.ties && t.ties <= above + here) {  // True in exactly one thread.
      found[0] = digit;
      found[1] = above;
    }
    __syncthreads();
    t.key |= static_cast<uint32_t>(found[0]) << shift;
    t.ties -= found[1];
    decided |= static_cast<uint32_t>(kDigits - 1) << shift;
    __syncthreads();
  }
  return t;
}

// Block e keeps the best C slots of expert e; nothing is sorted: five passes over its weights.
__device__ void keep_best(const DropOverCapacity& a, const Segment& s, int e, int C) {
  __shared__ int scratch[kScanScratch];
  const Threshold t = find_threshold(s, C);
  int ties_before = 0;
  for (int first = 0; first < s.n; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const uint32_t key = i < s.n ? s.key(i) : 0;
    const int tie = i < s.n && key == t.key;
    const Scanned<int> ties = block_scan(tie, scratch);
    const bool kept = key > t.key || (tie && ties_before + ties.before < t.ties);
    if (i < s.n) a.kept_ids[s.slots[i]] = kept ? e : -1;
    ties_before += ties.total;
  }
}

// A block an expert.
__global__ void __launch_bounds__(kThreads)
    select_kernel(DropOverCapacity a, Mat<const float> weights, const int64_t* limit) {
  const int64_t C = *limit;
  for (int64_t e = blockIdx.x; e < a.plan.experts; e += gridDim.x) {
    const auto n = static_cast<int>(a.plan.counts[e]);
    const int32_t* slots = a.plan.row_slot + a.plan.expert_offset[e];
    if (n > C && C > 0 && a.policy == DropPolicy::kProbs) {
      const Segment s{slots, weights.data, a.plan.choices, weights.ld, n};
      keep_best(a, s, static_cast<int>(e), static_cast<int>(C));
    } else {
      for (int i = threadIdx.x; i < n; i += kThreads) {
        a.kept_ids[slots[i]] = i < C ? static_cast<int>(e) : -1;
      }
    }
    __syncthreads();  // keep_best's shared memory serves the next expert.
  }
}

// One thread a token.
__global__ void weigh_kernel(DropOverCapacity a, Mat<const float> weights, Mat<float> out) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, K = a.plan.choices;
  if (t >= a.plan.tokens) return;
  for (int64_t s = t * K; s < (t + 1) * K; ++s) {
    if (a.plan.slot_row[s] < 0) a.kept_ids[s] = -1;
  }
  const Token<float> token{K, a.plan.experts, a.ids + t * K, a.kept_ids + t * K, weights.row(t)};
  capacity_detail::weigh(token, a.renormalize, out.row(t));
}

__global__ void weigh_backward_kernel(DropOverCapacityBackward a, Mat<const float> weights,
                                      Mat<const float> grad, Mat<float> out) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, K = weights.cols;
  if (t >= weights.rows) return;
  const Token<float> token{K, a.experts, a.ids + t * K, a.kept_ids + t * K, weights.row(t)};
  capacity_detail::weigh_backward(token, a.renormalize, grad.row(t), out.row(t));
}

unsigned token_blocks(int64_t tokens) {
  return static_cast<unsigned>(ceil_div(tokens, kTokenThreads));
}

}  // namespace

void drop_over_capacity_cuda(const DropOverCapacity& a, cudaStream_t stream) {
  validate(a);
  TROUPE_CHECK(a.workspace != nullptr, "workspace of", workspace_bytes(a), "bytes");
  const auto weights = a.weights.as<float>();
  const auto out = a.kept_weights.as<float>();
  auto* limit = static_cast<int64_t*>(a.workspace);
  limit_kernel<<<1, kThreads, 0, stream>>>(a, limit);
  TROUPE_LAUNCH_CHECK(stream);
  if (a.plan.tokens == 0) return;
  const auto experts = static_cast<unsigned>(std::min<int64_t>(a.plan.experts, 1 << 14));
  select_kernel<<<experts, kThreads, 0, stream>>>(a, weights, limit);
  TROUPE_LAUNCH_CHECK(stream);
  weigh_kernel<<<token_blocks(a.plan.tokens), kTokenThreads, 0, stream>>>(a, weights, out);
  TROUPE_LAUNCH_CHECK(stream);
}

void drop_over_capacity_backward_cuda(const DropOverCapacityBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.weights.rows == 0) return;
  const auto weights = a.weights.as<float>(), grad = a.grad_kept_weights.as<float>();
  const auto out = a.grad_weights.as<float>();
  weigh_backward_kernel<<<token_blocks(weights.rows), kTokenThreads, 0, stream>>>(a, weights, grad,
                                                                                  out);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
