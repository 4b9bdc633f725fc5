// Parameters and operations of a MoE layer, counted exactly (rules N1 and N2). Pure arithmetic.
#pragma once

#include <cstdint>

namespace troupe {

struct MoeSizes {
  int64_t width = 0;    // h
  int64_t hidden = 0;   // f
  int64_t experts = 1;  // E
  int64_t top_k = 1;    // k
  bool gated = true;
  int64_t shared_hidden = 0;  // f_s; 0: no shared expert
  int64_t latent = 0;         // l; 0: experts see the full width
  bool shared_gate = false;
  bool expert_bias = false;
  bool router_gate = true;  // the router has the product of gate.h
  bool router_bias = false;
  bool output_bias = false;
};

// One routed expert: n_m h f (n_m = 3 gated, else 2) and its biases; l in place of h if latent.
constexpr int64_t expert_params(const MoeSizes& s) {
  const int64_t in = s.latent > 0 ? s.latent : s.width, gates = s.gated ? 2 : 1;
  return (gates + 1) * in * s.hidden + (s.expert_bias ? gates * s.hidden + in : 0);
}

// The layer with `n` of its experts: E gives the total, k the active parameters. The shared expert
// has the routed ones' form, without biases.
constexpr int64_t moe_params_with(const MoeSizes& s, int64_t n) {
  return n * expert_params(s) +
         s.experts * ((s.router_gate ? s.width : 0) + (s.router_bias ? 1 : 0)) +
         (s.gated ? 3 : 2) * s.width * s.shared_hidden + (s.shared_gate ? s.width : 0) +
         2 * s.width * s.latent + (s.output_bias ? s.width : 0);
}
constexpr int64_t moe_params(const MoeSizes& s) {
  return moe_params_with(s, s.experts);
}

// Operations of the layer's matrix products for one token, forward; 2 a multiply-add. Dropped rows
// count as if computed here: multiply the routed part by the kept fraction. Pads never count.
struct MoeFlops {
  int64_t routed, router, shared, latent;
  constexpr int64_t total() const { return routed + router + shared + latent; }
};
constexpr MoeFlops moe_forward_flops(const MoeSizes& s) {
  const int64_t in = s.latent > 0 ? s.latent : s.width, products = s.gated ? 3 : 2;
  return {.routed = 2 * products * in * s.hidden * s.top_k,
          .router = s.router_gate ? 2 * s.width * s.experts : 0,
          .shared = 2 * products * s.width * s.shared_hidden + (s.shared_gate ? 2 * s.width : 0),
          .latent = 4 * s.width * s.latent};
}

}  // namespace troupe
