// All router kinds: the one list. A config has kKind, kHelp, visit() and build(), and where they
// apply:
//   GateConfig gate;                         // its router begins with the product of gate.h
//   static constexpr bool kCausal = false;   // a token's experts depend on later tokens
//   static constexpr bool kEven = true;      // every expert gets equally many tokens
#pragma once

#include <memory>
#include <type_traits>

#include "troupe/core/config/one_of.h"
#include "troupe/nn/moe/routers/expert_choice.h"
#include "troupe/nn/moe/routers/gate.h"
#include "troupe/nn/moe/routers/quantile.h"
#include "troupe/nn/moe/routers/sigmoid_bias.h"
#include "troupe/nn/moe/routers/sinkhorn_router.h"
#include "troupe/nn/moe/routers/table.h"
#include "troupe/nn/moe/routers/topk_softmax.h"

namespace troupe {

using RouterConfig = OneOf<TopkSoftmaxRouting, SigmoidBiasRouting, QuantileRouting, SinkhornRouting,
                           ExpertChoiceRouting, TableRouting>;

inline std::unique_ptr<Router> build(const RouterConfig& config, const RouterShape& shape) {
  return std::visit([&](const auto& c) { return c.build(shape); }, config);
}

// Whether a token's experts depend on it and on earlier tokens alone.
template <class Routing>  // a OneOf
bool is_causal(const Routing& routing) {
  return std::visit(
      [](const auto& c) {
        if constexpr (requires { c.kCausal; }) return c.kCausal;
        return true;
      },
      routing);
}

// Whether every expert gets equally many tokens, whatever the logits.
template <class Routing>
bool is_even(const Routing& routing) {
  return std::visit(
      [](const auto& c) {
        if constexpr (requires { c.kEven; }) return c.kEven;
        return false;
      },
      routing);
}

// The gate of a router's config, null where that kind has none.
template <class Routing>  // a OneOf, const or not
auto gate_of(Routing& routing) {
  using Pointer = std::conditional_t<std::is_const_v<Routing>, const GateConfig*, GateConfig*>;
  return std::visit(
      [](auto& c) -> Pointer {
        if constexpr (requires { c.gate; }) {
          return &c.gate;
        } else {
          return nullptr;
        }
      },
      routing);
}

}  // namespace troupe
