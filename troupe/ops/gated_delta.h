// The gated delta rule (Gated DeltaNet, https://arxiv.org/abs/2412.06464): linear attention whose
// state a head keeps is a matrix S [d, e] of keys by values. In each document S begins as 0, or as
// the given state, and for each token t and head h of values, in this order:
//
//   S = exp(g_t) S                              g <= 0: how much is forgotten
//   S = S + k_t (beta_t (v_t - S^T k_t))^T      the value under key k_t moves towards v_t
//   o_t = S^T q_t
//
// where q and k are first divided by their lengths, x / sqrt(sum x^2 + eps), and q by sqrt(d). There
// are G heads of queries and keys and H of values, a multiple: head h has keys of head h / (H / G).
//
// Computed in chunks of up to 64 tokens of one document, in f32 (f64 for f64), by ATen operators, on
// the CPU and on GPUs. With c_i the sum of g to place i of a chunk and S its state before it:
//
//   A_ij = beta_i exp(c_i - c_j) k_i . k_j   (i > j)     P_ij = exp(c_i - c_j) q_i . k_j   (i >= j)
//   U, W = (1 + A)^-1 [beta v],  (1 + A)^-1 [beta exp(c) k]
//   N = U - W S;   o = exp(c) q S + P N;   S' = exp(c_last) S + (exp(c_last - c) k)^T N
//
// Chunks are computed together but for the last line, which goes through those of a document in
// order, of all documents at once. Backward keeps the inputs and the state before each chunk,
// 4 H d e bytes for each 64 tokens, makes the rest again, and sends the gradient of the state through
// the chunks from last to first. At work are about 8 matrices [64, 64] for each head and chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe {

inline constexpr int64_t kDeltaChunk = 64;

struct GatedDeltaInputs {
  at::Tensor q_TGd, k_TGd;  // not divided by anything yet
  at::Tensor v_THe;
  at::Tensor g_TH, beta_TH;
};

struct GatedDeltaOptions {
  std::vector<int64_t> lengths;  // of the documents, one behind the other; their sum is T
  at::Tensor state = {};         // [documents, H, d, e], f32 (f64); undefined: zeros. No gradient
  double eps = 1e-6;
};

struct GatedDeltaResult {
  at::Tensor o_THe;  // of v's type
  at::Tensor state;  // [documents, H, d, e], f32 (f64): behind the last token. No gradient
};

// Gradients of all five inputs. No tokens give no rows.
GatedDeltaResult gated_delta(const GatedDeltaInputs& in, const GatedDeltaOptions& options);

// The same a token at a time, as the formula has it, on the CPU and in f64: for tests.
GatedDeltaResult gated_delta_ref(const GatedDeltaInputs& in, const GatedDeltaOptions& options);

}  // namespace troupe
