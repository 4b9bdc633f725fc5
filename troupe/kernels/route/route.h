// The router: chooses K of E experts for each token, weighs them, and sums what the balance losses
// need, in one pass over the logits z [T, E].
//
//   score s     softmax        exp(z_e) / sum_f exp(z_f)
//               sigmoid        1 / (1 + exp(-z_e))
//               sqrtsoftplus   sqrt(max(z_e, 0) + log1p(exp(-|z_e|)))
//   selection   z - beta if beta is given (R11), else z for the softmax (which keeps the order) and
//   x           s + bias for the others (R6, R10); rounded to f32 (f64 stays f64)
//   groups (R9) E / groups neighbors each. A group's score is the sum, largest first, of its
//               group_best largest x; with the softmax and a weighting other than kChosen of
//               exp(z - max z), which is s in units of the row's largest. The keep_groups best
//               groups stay open (ties: lower index); no expert of another is ever chosen.
//   ids[t, :]   the K open experts of largest x, largest first; ties go to the lower id (G2). With
//               given_ids: those (R3 uniform, R14 tables, R15 replay).
//   weights     scale * p (R8), p over the chosen experts I:
//     kChosen   softmax of the chosen logits (R4; softmax only; K = 1 is refused unless E = 1)
//     kRaw      s[I] (R5)
//     kSum      s[I] / (sum s[I] + 1e-20), and s[I] for K = 1 (R6)
//     kNorm     s[I] / (sum s[I]^q)^(1/q), q = norm (R7); a row of zeros gives zeros
//   counts[e]   how many pairs (t, k) have ids[t, k] == e
//   lse[t]      ln sum_e exp(z[t, e])
//
// For the balance losses (A1 to A9), over the tokens of each of B sequences (T / B neighbors each):
//   probs[b, e]         sum of r_te; r = s for the softmax, else s / (row sum of s + 1e-20)
//   plain_counts[b, e]  of the plain top-K of r: no bias, no groups, nothing given
//   tokens[b]           valid tokens
//   lse_squares         sum over all tokens of lse^2
//   kept_scores         sum over all tokens of sum_k s[ids[t, k]]: R6's diagnostic is this by token
// A1, A3, A4: add probs and plain_counts over b (A3: counts over ranks too). A2: use them as they
// are, with N_b = tokens[b]. A6: lse_squares / sum of tokens. A9: fold the columns into groups; the
// communication balance reads ids.
//
// An invalid token (valid[t] = 0, G3) has ids -1 and weights, lse and gradients 0, and is in no
// sum. NaN ranks as -inf. A row whose lse is NaN (a NaN or +inf in it, or nothing above -inf) has
// NaN weights, and ids that are distinct and in range (E12). A given id outside [0, E), which
// becomes -1, or repeated in its token, makes the token's weights NaN (E22).
//
// Backward: grad_logits of the scalar
//   sum grad_weights weights + sum grad_probs probs + grad_lse_squares lse_squares
// with ids constant; written whole, an absent gradient is 0.
//
// Scores other than the softmax are computed in f64 by operations that are the same on every
// processor (core/number/scores.h), so ids and counts are the same bits on CPU and CUDA. Sums run
// over chunks of rows that depend on the shapes alone, and over the chunks in order: no result
// depends on the number of threads. T = 0 gives zeros. Types: logits f32, bf16, f16 with float
// results; on the CPU also f64 with double ones. CUDA: one warp a token for E <= 1024, K <= 32,
// groups <= 32; beyond, one block a token and K passes over its row, which is slow.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/core/host_device.h"
#include "troupe/core/number/scores.h"

namespace troupe {

enum class Weighting { kChosen, kRaw, kSum, kNorm };

struct RouteRule {
  int64_t choices = 1;  // K
  Score score = Score::kSoftmax;
  Weighting weighting = Weighting::kRaw;
  float norm = 1;           // q >= 1 of kNorm
  float scale = 1;          // alpha
  int64_t groups = 1;       // g
  int64_t keep_groups = 1;  // a
  int64_t group_best = 1;   // m
};

struct Route {
  MatRef logits;  // [T, E]
  RouteRule rule;
  const float* bias = nullptr;         // [E]  not with the softmax
  const float* beta = nullptr;         // [E]  excludes bias and groups; needs K < E
  const uint8_t* valid = nullptr;      // [T]
  const int32_t* given_ids = nullptr;  // [T, K]  excludes bias, beta and groups
  int64_t sequences = 1;               // B, divides T

  int32_t* ids = nullptr;     // [T, K]  out
  MutRef weights;             // [T, K]  out, as all MutRef: f32 (f64 beside f64 logits)
  int64_t* counts = nullptr;  // [E]     out
  MutRef lse;                 // [1, T]  out
  MutRef probs;               // [B, E]  out; without data neither this nor plain_counts is made
  int64_t* plain_counts = nullptr;  // [B, E]  out
  int64_t* tokens = nullptr;        // [B]     out
  MutRef lse_squares;               // [1, 1]  out
  MutRef kept_scores;               // [1, 1]  out
  void* workspace = nullptr;        // workspace_bytes(), 16-byte aligned; CUDA only

  // Does the choice differ from the plain top-K?
  TROUPE_HOST_DEVICE bool is_plain() const {
    return bias == nullptr && beta == nullptr && given_ids == nullptr && rule.groups == 1;
  }
};

struct RouteBackward {
  MatRef logits;  // [T, E]
  RouteRule rule;
  const uint8_t* valid = nullptr;  // [T]
  const int32_t* ids = nullptr;    // [T, K]  forward's
  int64_t sequences = 1;
  MatRef grad_weights;      // [T, K]  f32 or f64, as forward's outputs; may be without data
  MatRef grad_probs;        // [B, E]  may be without data
  MatRef grad_lse_squares;  // [1, 1]  may be without data
  MutRef grad_logits;       // [T, E]  out, logits' type
};

void validate(const RouteRule& rule, int64_t experts);
void validate(const Route& args);
void validate(const RouteBackward& args);
int64_t bytes_moved(const Route& args);
int64_t bytes_moved(const RouteBackward& args);
int64_t workspace_bytes(const Route& args);

void route_ref(const Route& args);
void route_cpu(const Route& args, const Pool& pool);
void route_cuda(const Route& args, cudaStream_t stream);

void route_backward_ref(const RouteBackward& args);
void route_backward_cpu(const RouteBackward& args, const Pool& pool);
void route_backward_cuda(const RouteBackward& args, cudaStream_t stream);

}  // namespace troupe
