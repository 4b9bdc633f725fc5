// The weights of one token's slots, forward and backward: what the CPU and the CUDA path share.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/core/number/dtype.h"

namespace troupe::capacity_detail {

// Weights are f32, or f64 where gradients are checked.
template <class F>
void dispatch_weights(Dtype dtype, F&& f) {
  TROUPE_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kF64, "weights of type", name(dtype));
  dtype == Dtype::kF32 ? f.template operator()<float>() : f.template operator()<double>();
}

template <class T>
struct Token {
  int64_t choices;
  int64_t experts;
  const int32_t* ids;       // [K]
  const int32_t* kept_ids;  // [K]
  const T* weights;         // [K]

  TROUPE_HOST_DEVICE bool routed(int64_t k) const { return 0 <= ids[k] && ids[k] < experts; }
  TROUPE_HOST_DEVICE bool kept(int64_t k) const { return kept_ids[k] >= 0; }
};

template <class T>
struct Sums {
  T routed;  // S
  T kept;    // Q; the same bits as S where nothing was dropped
};

template <class T>
TROUPE_HOST_DEVICE Sums<T> sums(const Token<T>& t) {
  Sums<T> s{0, 0};
  for (int64_t k = 0; k < t.choices; ++k) {
    if (t.routed(k)) s.routed += t.weights[k];
    if (t.kept(k)) s.kept += t.weights[k];
  }
  return s;
}

template <class T>
TROUPE_HOST_DEVICE T factor(const Sums<T>& s) {
  return s.kept == T{0} ? T{0} : s.routed / s.kept;
}

template <class T>
TROUPE_HOST_DEVICE void weigh(const Token<T>& t, bool renormalize, T* kept_weights) {
  const T f = renormalize ? factor(sums(t)) : T{1};
  for (int64_t k = 0; k < t.choices; ++k) {
    kept_weights[k] = t.kept(k) ? f * t.weights[k] : T{0};
  }
}

template <class T>
TROUPE_HOST_DEVICE void weigh_backward(const Token<T>& t, bool renormalize, const T* grad,
                                       T* grad_weights) {
  T f = 1, rest = 0;  // rest: d / Q
  if (renormalize) {
    const Sums<T> s = sums(t);
    f = factor(s);
    T dot = 0;
    for (int64_t k = 0; k < t.choices; ++k) {
      if (t.kept(k)) dot += grad[k] * t.weights[k];
    }
    rest = s.kept == T{0} ? T{0} : dot / s.kept;
  }
  for (int64_t k = 0; k < t.choices; ++k) {
    const T direct = t.kept(k) ? f * grad[k] : T{0};
    // f is exactly 1 where nothing was dropped, and then the second term exactly 0.
    const T shared = t.routed(k) ? rest * (t.kept(k) ? T{1} - f : T{1}) : T{0};
    grad_weights[k] = direct + shared;
  }
}

}  // namespace troupe::capacity_detail
