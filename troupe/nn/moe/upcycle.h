// From a dense feed-forward to a mixture of experts (rules U1 to U3).
//
//   g = F_dense / F slices of the dense width, q = E / g copies of each
//   expert j g + i gets slice i of the dense layer: rows of W1 (gate and up halves each for
//   themselves) and b1, columns of W2; b2 whole
//   router: q rows drawn, each repeated g times, so that the slices of a copy tie and are chosen
//   together (G2)
//   W1, V, W2, b1 times A^(1/3) where the layer is of third degree in them (a GLU, relu^2), else
//   A^(1/2); b2 as it is. A = g for weights that sum to 1 (R4, or R7 with q = 1);
//   A = q g^2 / k for a softmax over all experts (R5)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "troupe/ops/moe_ffn/moe_ffn.h"

namespace troupe {

struct Upcycle {
  int64_t experts = 0;
  int64_t hidden = 0;  // F, of one expert
  int64_t top_k = 1;
  std::string activation = "silu";
  bool gated = true;
  bool weights_sum_to_one = true;  // R4; false: R5
  bool allow_inexact = false;      // k need not be a multiple of g
};

struct DenseWeights {
  at::Tensor w1;                 // [2 F_dense, D] or [F_dense, D]
  std::optional<at::Tensor> b1;  // [2 F_dense] or [F_dense]
  at::Tensor w2;                 // [D, F_dense]
  std::optional<at::Tensor> b2;  // [D]
};

int64_t slices(const Upcycle& u, int64_t dense_hidden);  // g; refuses what does not divide
double weight_scale(const Upcycle& u, int64_t dense_hidden);

// Exact up to rounding (U3): weights that sum to 1 and k a multiple of g, and g = 1 or an
// activation of relu's kind. Elsewhere the layer only starts near the dense one.
bool is_exact(const Upcycle& u, int64_t dense_hidden);

ExpertWeights upcycle(const DenseWeights& dense, const Upcycle& u);
// Draw q rows [q, D]; the router's weight [E, D].
at::Tensor upcycle_router(const at::Tensor& rows_qD, const Upcycle& u, int64_t dense_hidden);

}  // namespace troupe
