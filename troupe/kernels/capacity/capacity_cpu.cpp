// The CPU path: an expert's slots are partitioned, not sorted, and only where some must go; then
// one pass over the tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "troupe/kernels/capacity/capacity.h"
#include "troupe/kernels/capacity/token_weights.h"

namespace troupe {
namespace {

constexpr int64_t kTokensPerRange = 512;

template <class T>
struct Candidate {
  T weight;
  int32_t slot;
};

template <class T>
bool preferred(const Candidate<T>& a, const Candidate<T>& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.slot < b.slot);
}

template <class T>
class Selector {
 public:
  Selector(const DropOverCapacity& a, int64_t C) : a_(a), weights_(a.weights.as<T>()), C_(C) {}

  void select(int64_t e) {
    const int32_t* slots = a_.plan.row_slot + a_.plan.expert_offset[e];
    const int64_t n = a_.plan.counts[e], kept = std::min(n, C_);
    if (kept < n && a_.policy == DropPolicy::kProbs) return select_best(slots, n, e);
    for (int64_t i = 0; i < n; ++i) mark(slots[i], e, i < kept);
  }

 private:
  void select_best(const int32_t* slots, int64_t n, int64_t e) {
    all_.clear();
    for (int64_t i = 0; i < n; ++i) all_.push_back({key(slots[i]), slots[i]});
    std::nth_element(all_.begin(), all_.begin() + C_, all_.end(), preferred<T>);
    for (int64_t i = 0; i < n; ++i) mark(all_[i].slot, e, i < C_);
  }
  T key(int32_t slot) const {
    const T w = weights_(slot / a_.plan.choices, slot % a_.plan.choices);
    return std::isnan(w) ? -std::numeric_limits<T>::infinity() : w;
  }
  void mark(int32_t slot, int64_t e, bool kept) {
    a_.kept_ids[slot] = kept ? static_cast<int32_t>(e) : -1;
  }

  const DropOverCapacity& a_;
  Mat<const T> weights_;
  int64_t C_;
  std::vector<Candidate<T>> all_;
};

template <class T>
void weigh_tokens(const DropOverCapacity& a, int64_t begin, int64_t end) {
  const int64_t K = a.plan.choices;
  const auto weights = a.weights.as<T>();
  const auto out = a.kept_weights.as<T>();
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t s = t * K; s < (t + 1) * K; ++s) {
      if (a.plan.slot_row[s] < 0) a.kept_ids[s] = -1;
    }
    const capacity_detail::Token<T> token{K, a.plan.experts, a.ids + t * K, a.kept_ids + t * K,
                                          weights.row(t)};
    capacity_detail::weigh(token, a.renormalize, out.row(t));
  }
}

}  // namespace

void drop_over_capacity_cpu(const DropOverCapacity& a, const Pool& pool) {
  validate(a);
  const int64_t T = a.plan.tokens, E = a.plan.experts;
  const int64_t n = a.valid == nullptr ? T : T - std::count(a.valid, a.valid + T, uint8_t{0});
  const int64_t C = capacity(a.rule, n, a.plan.choices, E);
  *a.dropped = 0;
  for (int64_t e = 0; e < E; ++e) *a.dropped += std::max<int64_t>(0, a.plan.counts[e] - C);
  capacity_detail::dispatch_weights(a.weights.dtype, [&]<class W>() {
    pool(E, 1, [&](int64_t begin, int64_t end) {
      Selector<W> selector(a, C);
      for (int64_t e = begin; e < end; ++e) selector.select(e);
    });
    pool(T, kTokensPerRange, [&](int64_t begin, int64_t end) { weigh_tokens<W>(a, begin, end); });
  });
}

void drop_over_capacity_backward_cpu(const DropOverCapacityBackward& a, const Pool& pool) {
  validate(a);
  const int64_t K = a.weights.cols;
  capacity_detail::dispatch_weights(a.weights.dtype, [&]<class W>() {
    const auto weights = a.weights.as<W>(), grad = a.grad_kept_weights.as<W>();
    const auto out = a.grad_weights.as<W>();
    pool(a.weights.rows, kTokensPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const capacity_detail::Token<W> token{K, a.experts, a.ids + t * K, a.kept_ids + t * K,
                                              weights.row(t)};
        capacity_detail::weigh_backward(token, a.renormalize, grad.row(t), out.row(t));
      }
    });
  });
}

}  // namespace troupe
