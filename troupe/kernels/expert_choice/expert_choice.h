// Expert choice (R13): each expert takes its C best tokens.
//
//   s[t, e]   kernels/route's score of the logits z [T, E], rounded to f32 (f64 stays f64)
//   C         = min(n, ceil(n rho / E - 1e-6)) of the n valid tokens; 1e-6 as in rule C2
//   taken     (t, e) is taken if t is among the C valid tokens of largest s[:, e]; ties go to the
//             lower token (G2), NaN ranks as -inf. With given_ids: if given_ids[t, e] == e (R15).
//   ids       [T, E]  e where taken, else -1; so a token may have 0 to E experts
//   weights   [T, E]  scale * s where taken, else 0; with `normalize` s is divided by (the token's
//             sum of taken s + 1e-20). NaN where taken in a row with a NaN or +inf (E12).
//   counts    [E]     C, or as given
//   lse_squares       sum over valid tokens of (ln sum_e exp(z[t, e]))^2, for the z-loss
//
// Backward: grad_logits of sum grad_weights weights + grad_lse_squares lse_squares, ids constant.
//
// Invalid tokens (G3) have ids -1 and weights and gradients 0. T = 0 and n = 0 give zeros. The
// scores are summed in f64: with all but certainty the ids are the same bits on CPU and CUDA. Types
// as kernels/route. Deterministic. CUDA: any E, T < 2^31.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/core/number/scores.h"

namespace troupe {

struct ExpertChoiceRule {
  Score score = Score::kSoftmax;
  double rho = 1;  // mean experts of a token, in [0, E]
  bool normalize = false;
  float scale = 1;
};

struct ExpertChoice {
  MatRef logits;  // [T, E]
  ExpertChoiceRule rule = {};
  const uint8_t* valid = nullptr;      // [T]
  const int32_t* given_ids = nullptr;  // [T, E]
  int32_t* ids = nullptr;              // [T, E]  out
  MutRef weights = {};                 // [T, E]  out, f32 (f64 beside f64 logits)
  int64_t* counts = nullptr;           // [E]     out
  MutRef lse_squares = {};             // [1, 1]  out, as weights
  void* workspace = nullptr;           // workspace_bytes(), 16-byte aligned; CUDA only
};

struct ExpertChoiceBackward {
  MatRef logits;  // [T, E]
  ExpertChoiceRule rule = {};
  const uint8_t* valid = nullptr;
  const int32_t* ids = nullptr;  // [T, E]  forward's
  MatRef grad_weights = {};      // [T, E]  f32 or f64; may be without data
  MatRef grad_lse_squares = {};  // [1, 1]  may be without data
  MutRef grad_logits = {};       // [T, E]  out, logits' type
};

// C for n valid tokens.
int64_t expert_choice_capacity(double rho, int64_t tokens, int64_t experts);

void validate(const ExpertChoice& args);
void validate(const ExpertChoiceBackward& args);
int64_t bytes_moved(const ExpertChoice& args);
int64_t workspace_bytes(const ExpertChoice& args);

void expert_choice_ref(const ExpertChoice& args);
void expert_choice_cpu(const ExpertChoice& args, const Pool& pool);
void expert_choice_cuda(const ExpertChoice& args, cudaStream_t stream);

void expert_choice_backward_ref(const ExpertChoiceBackward& args);
void expert_choice_backward_cpu(const ExpertChoiceBackward& args, const Pool& pool);
void expert_choice_backward_cuda(const ExpertChoiceBackward& args, cudaStream_t stream);

}  // namespace troupe
