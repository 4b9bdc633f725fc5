// What a model costs, counted from its config alone: nothing is built (rules N1 to N4).
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/nn/models/config.h"

namespace troupe {

// Parameters by who may share them out: other divisors for each (trainer.md, section 8).
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
  int64_t product_params = 0;  // of those, the weights of products (no lookup, norm, bias): A
  int64_t core_dims = 0;    // heads (d_qk + d_v): core FLOPs are 2 core_dims keys a token, forward
  int64_t window = 0;       // 0: none
  int64_t saved_bytes = 0;  // a token keeps for backward, in a 2-byte type
  int64_t state = 0;        // elements that no optimizer sees (balance bias): not in params
};

struct ModelCosts {
  std::vector<UnitCosts> units;  // embedding, blocks, head with its MTP modules

  int64_t params() const;          // without MTP modules: what is published
  int64_t active_params() const;   // with embeddings
  int64_t mtp_params = 0;          // of the MTP modules, in the head's unit too
  int64_t product_params() const;  // A of trainer.md 11
  // Forward and backward: 6 A + 6 core_dims keys, keys the mean number that a token sees:
  // S / 2 causally (`full`: S, as the PaLM and MegaBlocks papers count), min(S / 2, w) in a window.
  // The output head is in, MTP modules are not.
  double flops_per_token(int64_t sequence, bool full = false) const;
  double flops_with_keys(double mean_keys) const;  // packed documents: sum L^2 / (2 sum L)
};

ModelCosts costs_of(const ModelConfig& config);

}  // namespace troupe
