// What a model costs, counted from its config alone: nothing is built (rules N1 to N4).
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/nn/config/config.h"

namespace troupe {

// Parameters by how ranks divide them. Without what no optimizer sees: a router's balancing bias.
struct ParamCount {
  int64_t embedding = 0;   // tables and the untied head: tensor-sharded along the vocabulary
  int64_t dense = 0;       // matrices of attention, dense and shared feed-forwards: tensor-sharded
  int64_t replicated = 0;  // norms, biases, routers, sinks
  int64_t experts = 0;     // routed ones: divided over expert ranks

  int64_t total() const { return embedding + dense + replicated + experts; }
  ParamCount& operator+=(const ParamCount& other);
};

struct UnitCosts {
  ParamCount params;           // of this unit; a tied head has none
  int64_t active_params = 0;   // that one token meets: top_k experts in place of all
  int64_t product_params = 0;  // A: of those, the weights of products (no lookup, norm, bias)
  // Multi-token prediction, which no other count here includes: its modules, a unit each
  // (their active_params are those of the final norm, where they compute it), and the products of
  // the head that give their logits.
  bool is_mtp = false;
  int64_t mtp_product_params = 0;
  int64_t core_dims = 0;  // heads (d_qk + d_v): core FLOPs are 2 core_dims keys a token, forward
  int64_t window = 0;     // 0: none
  // Multiply-adds a token of linear attention beside products with weights, whatever its keys: core
  // FLOPs are 2 state_products more, forward.
  int64_t state_products = 0;
  int64_t saved_bytes = 0;  // a token keeps for backward, in a 2-byte type
};

struct ModelCosts {
  std::vector<UnitCosts> units;  // embedding, blocks, MTP modules, head

  int64_t params() const;          // without MTP modules: what is published
  int64_t active_params() const;   // with embeddings
  int64_t mtp_params = 0;          // of the MTP modules, in their units too
  int64_t product_params() const;  // A
  // Forward and backward: 6 A + 6 state_products + 6 core_dims keys, keys the mean number that a token sees:
  // S / 2 causally (`full`: S, as the PaLM and MegaBlocks papers count), min(S / 2, w) in a window.
  // The output head is in, MTP modules are not.
  double flops_per_token(int64_t sequence, bool full = false) const;
  double flops_with_keys(double mean_keys) const;  // packed documents: sum L^2 / (2 sum L)
};

ModelCosts costs_of(const ModelConfig& config);

}  // namespace troupe
