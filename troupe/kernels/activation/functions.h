// The activations (rule X3), each one functor: g -> value and slope, in float or double, on the
// host and on a GPU; and their gated forms with clamp and offset (rule X4). Plain C++, so that the
// epilogues of the GEMMs use the same lines. Seen from other folders through activation.h.
//
// A new activation is two lines: the functor, and its entry in TROUPE_ACTIVATIONS.
// None makes a NaN from a finite number, and a NaN stays one.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/core/number/fast_math.h"

namespace troupe {

template <class W>
struct ValueSlope {
  W value, slope;
};

// g sigmoid(g). Here and below, (g p) q is formed in this order: g alone may be huge where q is 0.
struct Silu {
  template <class W>
  TROUPE_INLINE ValueSlope<W> operator()(W g) const {
    const auto s = fast::sigmoid(g);
    return {g * s.p, s.p + g * s.p * s.q};
  }
};

// g (1 + erf(g / sqrt 2)) / 2
struct Gelu {
  template <class W>
  TROUPE_INLINE ValueSlope<W> operator()(W g) const {
    const auto n = fast::normal(g);
    return {g * n.cdf, n.cdf + g * n.density};
  }
};

// g (1 + tanh y) / 2 = g sigmoid(2 y), 2 y = sqrt(8 / pi) (g + 0.044715 g^3)
struct GeluTanh {
  template <class W>
  TROUPE_INLINE ValueSlope<W> operator()(W g) const {
    constexpr W kScale = W(1.5957691216057308), kCube = W(0.044715);
    const W t = fast::at_least(fast::at_most(g, W(40)), W(-40));  // Beyond, sigmoid is 0 or 1.
    const auto s = fast::sigmoid(kScale * t * (1 + kCube * t * t));
    return {g * s.p, s.p + t * s.p * s.q * (kScale * (1 + 3 * kCube * t * t))};
  }
};

// g sigmoid(1.702 g)
struct QuickGelu {
  template <class W>
  TROUPE_INLINE ValueSlope<W> operator()(W g) const {
    const auto s = fast::sigmoid(W(1.702) * g);
    return {g * s.p, s.p + W(1.702) * (g * s.p * s.q)};
  }
};

// max(g, 0), of slope 0 at 0
struct Relu {
  template <class W>
  TROUPE_INLINE ValueSlope<W> operator()(W g) const {
    return {fast::at_least(g, W(0)), g > 0 ? W(1) : W(0)};
  }
};

// max(g, 0)^2
struct Relu2 {
  template <class W>
  TROUPE_INLINE ValueSlope<W> operator()(W g) const {
    const W r = fast::at_least(g, W(0));
    return {r * r, 2 * r};
  }
};

#define TROUPE_ACTIVATIONS(X) \
  X(Silu, "silu")             \
  X(Gelu, "gelu")             \
  X(GeluTanh, "gelu_tanh")    \
  X(QuickGelu, "quick_gelu")  \
  X(Relu, "relu")             \
  X(Relu2, "relu2")

#define TROUPE_ACT_ENUM(Type, text) k##Type,
enum class Act : uint8_t { TROUPE_ACTIVATIONS(TROUPE_ACT_ENUM) };
#undef TROUPE_ACT_ENUM

// dispatch_act(act, [&]<class F>() { run<F>(); });
template <class Body>
void dispatch_act(Act act, Body&& body) {
  switch (act) {
#define TROUPE_ACT_CASE(Type, text) \
  case Act::k##Type: return body.template operator()<Type>();
    TROUPE_ACTIVATIONS(TROUPE_ACT_CASE)
#undef TROUPE_ACT_CASE
  }
  TROUPE_CHECK(false, "no activation of number", static_cast<int>(act));
}

const char* name(Act act);
Act act_of_name(std::string_view name);  // throws; the message lists the names
inline constexpr int kNumActs = 0
#define TROUPE_ACT_ONE(Type, text) +1
    TROUPE_ACTIVATIONS(TROUPE_ACT_ONE);
#undef TROUPE_ACT_ONE

// Rule X4. The clamp comes first: g <- min(g, clamp), v <- clamp(v, -clamp, clamp), then v +
// offset.
template <class W>
struct GluLimits {
  W clamp = std::numeric_limits<W>::infinity();
  W offset = 0;
};

// One unit's output before the score, u = act(g) (v + o), and its slopes du/dg and du/dv.
template <class W>
struct GluUnit {
  W value, slope_g, slope_v;
};

template <class F, class W>
TROUPE_INLINE GluUnit<W> glu_unit(W g, W v, GluLimits<W> limits) {
  const auto act = F()(fast::at_most(g, limits.clamp));
  const W w = fast::at_least(fast::at_most(v, limits.clamp), -limits.clamp) + limits.offset;
  const bool g_moves = !(g > limits.clamp);  // So that a NaN moves, and is seen.
  const bool v_moves = !(v > limits.clamp) && !(v < -limits.clamp);
  return {act.value * w, g_moves ? act.slope * w : W(0), v_moves ? act.value : W(0)};
}

// The same without a gate: u = act(g).
template <class F, class W>
TROUPE_INLINE ValueSlope<W> mlp_unit(W g, W clamp) {
  const auto act = F()(fast::at_most(g, clamp));
  return {act.value, g > clamp ? W(0) : act.slope};
}

}  // namespace troupe
