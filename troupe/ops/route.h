// The router after its logits: choices, weights, and what the balance losses read (kernels/route
// has the formulas). Gradients flow from weights, probs and lse_squares to the logits.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/kernels/route/route.h"

namespace troupe {

struct RouteOptions {
  RouteRule rule = {};
  int64_t sequences = 1;         // B, divides T
  bool balance = true;           // false: probs and plain_counts are not made
  at::Tensor bias_E = {};        // f32: s + bias selects (R10)
  at::Tensor beta_E = {};        // f32: z - beta selects (R11)
  at::Tensor valid_T = {};       // bool (G3)
  at::Tensor given_ids_TK = {};  // int32: choices made elsewhere (R14, R15)
};

struct RouteResult {
  at::Tensor ids_TK;      // int32
  at::Tensor weights_TK;  // f32, f64 beside f64 logits; so are the other float results
  at::Tensor counts_E;    // int64
  at::Tensor lse_T;
  at::Tensor probs_BE;         // undefined without balance
  at::Tensor plain_counts_BE;  // int64, undefined without balance
  at::Tensor tokens_B;         // int64
  at::Tensor lse_squares;      // scalar
  at::Tensor kept_scores;      // scalar
};

RouteResult route(const at::Tensor& logits_TE, const RouteOptions& options);

}  // namespace troupe
