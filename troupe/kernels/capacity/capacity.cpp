#include "troupe/kernels/capacity/capacity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/kernels/capacity/token_weights.h"

namespace troupe {
namespace {

template <class Matrix>
void check_slots(const Matrix& m, int64_t tokens, int64_t choices, const char* what) {
  TROUPE_CHECK(m.rows == tokens && m.cols == choices, what, "is", m.rows, "x", m.cols, "for",
               tokens, "tokens x", choices);
  TROUPE_CHECK(m.dtype == Dtype::kF32 || m.dtype == Dtype::kF64, what, "has type", name(m.dtype));
}

int64_t count_valid(const DropOverCapacity& a) {
  if (a.valid == nullptr) return a.plan.tokens;
  return std::count_if(a.valid, a.valid + a.plan.tokens, [](uint8_t v) { return v != 0; });
}

// The slots that chose e, the ones to keep first.
template <class T>
std::vector<int64_t> by_preference(const DropOverCapacity& a, int32_t e) {
  const auto weights = a.weights.as<T>();
  const int64_t K = a.plan.choices;
  const auto key = [&](int64_t s) {
    const double w = weights(s / K, s % K);
    return std::isnan(w) ? -std::numeric_limits<double>::infinity() : w;
  };
  std::vector<int64_t> slots;
  for (int64_t s = 0; s < a.plan.tokens * K; ++s) {
    if (a.ids[s] == e) slots.push_back(s);
  }
  if (a.policy == DropPolicy::kProbs) {
    std::stable_sort(slots.begin(), slots.end(),
                     [&](int64_t i, int64_t j) { return key(i) > key(j); });
  }
  return slots;
}

}  // namespace

int64_t capacity(const CapacityRule& rule, int64_t tokens, int64_t choices, int64_t experts) {
  TROUPE_CHECK(rule.factor >= 0 && rule.minimum >= 0, "factor", rule.factor, "minimum",
               rule.minimum);
  TROUPE_CHECK(tokens >= 0 && choices >= 1 && experts >= 1, "tokens", tokens, "choices", choices,
               "experts", experts);
  if (rule.factor == 0) return tokens;
  const double share = rule.factor * static_cast<double>(tokens) * static_cast<double>(choices) /
                       static_cast<double>(experts);
  // Before the cast: a share beyond int64 is beyond the tokens too.
  if (share >= static_cast<double>(tokens)) return tokens;
  return std::min(tokens, std::max(rule.minimum, static_cast<int64_t>(std::ceil(share - 1e-6))));
}

void validate(const DropOverCapacity& a) {
  const int64_t T = a.plan.tokens, K = a.plan.choices;
  capacity(a.rule, T, K, a.plan.experts);
  check_slots(a.weights, T, K, "weights");
  check_slots(a.kept_weights, T, K, "kept_weights");
  TROUPE_CHECK(a.weights.dtype == a.kept_weights.dtype, "weights", name(a.weights.dtype),
               "kept_weights", name(a.kept_weights.dtype));
  TROUPE_CHECK(a.dropped != nullptr, "dropped");
  TROUPE_CHECK(a.plan.counts != nullptr && a.plan.expert_offset != nullptr, "plan");
  TROUPE_CHECK((a.ids != nullptr && a.kept_ids != nullptr) || T == 0, "ids, kept_ids");
  TROUPE_CHECK((a.plan.row_slot != nullptr && a.plan.slot_row != nullptr) || T == 0, "plan");
}

void validate(const DropOverCapacityBackward& a) {
  const int64_t T = a.weights.rows, K = a.weights.cols;
  check_slots(a.weights, T, K, "weights");
  check_slots(a.grad_kept_weights, T, K, "grad_kept_weights");
  check_slots(a.grad_weights, T, K, "grad_weights");
  TROUPE_CHECK(
      a.weights.dtype == a.grad_weights.dtype && a.weights.dtype == a.grad_kept_weights.dtype,
      "weights", name(a.weights.dtype), "gradients", name(a.grad_kept_weights.dtype),
      name(a.grad_weights.dtype));
  TROUPE_CHECK(a.experts >= 1, "experts", a.experts);
  TROUPE_CHECK((a.ids != nullptr && a.kept_ids != nullptr) || T == 0, "ids, kept_ids");
}

int64_t bytes_moved(const DropOverCapacity& a) {
  const int64_t slots = a.plan.tokens * a.plan.choices;
  return slots * (8 + 2 * size_bytes(a.weights.dtype)) + 12 * a.plan.experts;
}

int64_t workspace_bytes(const DropOverCapacity&) {
  return sizeof(int64_t);  // C, where `valid` decides it on the device
}

void drop_over_capacity_ref(const DropOverCapacity& a) {
  validate(a);
  const int64_t T = a.plan.tokens, K = a.plan.choices;
  const int64_t C = capacity(a.rule, count_valid(a), K, a.plan.experts);
  std::fill_n(a.kept_ids, T * K, -1);
  *a.dropped = 0;
  capacity_detail::dispatch_weights(a.weights.dtype, [&]<class W>() {
    for (int32_t e = 0; e < a.plan.experts; ++e) {
      const std::vector<int64_t> slots = by_preference<W>(a, e);
      const auto kept = std::min<int64_t>(C, static_cast<int64_t>(slots.size()));
      for (int64_t i = 0; i < kept; ++i) a.kept_ids[slots[i]] = e;
      *a.dropped += static_cast<int64_t>(slots.size()) - kept;
    }
    const auto weights = a.weights.as<W>();
    const auto out = a.kept_weights.as<W>();
    for (int64_t t = 0; t < T; ++t) {
      double routed = 0, kept = 0;
      for (int64_t k = 0; k < K; ++k) {
        const int32_t id = a.ids[t * K + k];
        if (0 <= id && id < a.plan.experts) routed += weights(t, k);
        if (a.kept_ids[t * K + k] >= 0) kept += weights(t, k);
      }
      const double f = a.renormalize && kept != 0 ? routed / kept : 1;
      for (int64_t k = 0; k < K; ++k) {
        out(t, k) = static_cast<W>(a.kept_ids[t * K + k] >= 0 ? f * weights(t, k) : 0);
      }
    }
  });
}

void drop_over_capacity_backward_ref(const DropOverCapacityBackward& a) {
  validate(a);
  const int64_t T = a.weights.rows, K = a.weights.cols;
  capacity_detail::dispatch_weights(a.weights.dtype, [&]<class W>() {
    const auto weights = a.weights.as<W>(), grad = a.grad_kept_weights.as<W>();
    const auto out = a.grad_weights.as<W>();
    std::vector<double> w(K), g(K), result(K);
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t k = 0; k < K; ++k) w[k] = weights(t, k), g[k] = grad(t, k);
      const capacity_detail::Token<double> token{K, a.experts, a.ids + t * K, a.kept_ids + t * K,
                                                 w.data()};
      capacity_detail::weigh_backward(token, a.renormalize, g.data(), result.data());
      for (int64_t k = 0; k < K; ++k) out(t, k) = static_cast<W>(result[k]);
    }
  });
}

}  // namespace troupe
