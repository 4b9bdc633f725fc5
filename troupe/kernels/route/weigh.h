// From what the chosen experts are worth to their weights, and back: one formula for a loop, a warp
// and a block. `over` knows how to go over the choices j in [0, K):
//   over.sum(f), over.max(f)   of f(j), the same on every caller; max ignores NaN
// `value(j)` is the chosen logit for Weighting::kChosen, else the chosen score.
#pragma once

#include <cmath>

#include "troupe/core/host_device.h"
#include "troupe/core/number/fast_math.h"
#include "troupe/core/number/scores.h"
#include "troupe/kernels/route/route.h"

namespace troupe::route_detail {

template <class W>
TROUPE_INLINE W power(W x, float q) {
  if (q == 0) return 1;
  if (q == 1) return x;
  if (q == 2) return x * x;
  return std::pow(x, static_cast<W>(q));
}

// p_j = exp(value_j - top) / divisor for kChosen, else value_j / top / divisor.
template <class W>
struct Norm {
  W top, divisor;
};

template <class W, class Over, class Value>
TROUPE_INLINE Norm<W> norm_of(const RouteRule& rule, const Over& over, const Value& value) {
  if (rule.weighting == Weighting::kChosen) {
    const W top = over.max(value);
    return {top, over.sum([&](int64_t j) { return fast::exp(value(j) - top); })};
  }
  if (rule.weighting == Weighting::kSum && rule.choices > 1)
    return {1, over.sum(value) + scores::kTiny};
  if (rule.weighting == Weighting::kNorm) {
    const W top = over.max(value);
    if (!(top > 0)) return {1, static_cast<W>(INFINITY)};  // All zero: weights and gradients 0.
    const W sum = over.sum([&](int64_t j) { return power(value(j) / top, rule.norm); });
    return {top, rule.norm == 1 ? sum : std::pow(sum, W(1) / static_cast<W>(rule.norm))};
  }
  return {1, 1};
}

template <class W>
TROUPE_INLINE W weight_of(const RouteRule& rule, const Norm<W>& norm, W value) {
  if (rule.weighting == Weighting::kChosen) return fast::exp(value - norm.top) / norm.divisor;
  return value / norm.top / norm.divisor;
}

// The gradient of value_j: p its weight before scaling, g the gradient of p, dot = sum_j g_j p_j.
template <class W>
TROUPE_INLINE W value_grad(const RouteRule& rule, const Norm<W>& norm, W p, W g, W dot) {
  switch (rule.weighting) {
    case Weighting::kChosen: return p * (g - dot);
    case Weighting::kRaw: return g;
    case Weighting::kSum: return rule.choices == 1 ? g : (g - dot) / norm.divisor;
    case Weighting::kNorm: return (g - dot * power(p, rule.norm - 1)) / norm.top / norm.divisor;
  }
  return 0;
}

// The choices one after another.
template <class W>
struct OverLoop {
  int64_t choices;
  TROUPE_INLINE W sum(const auto& f) const {
    W total = 0;
    for (int64_t j = 0; j < choices; ++j) total += f(j);
    return total;
  }
  TROUPE_INLINE W max(const auto& f) const {
    W top = static_cast<W>(-INFINITY);
    for (int64_t j = 0; j < choices; ++j) {
      const W next = f(j);
      top = next > top ? next : top;
    }
    return top;
  }
};

}  // namespace troupe::route_detail
