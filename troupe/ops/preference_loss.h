// The loss of preference pairs (DPO, IPO, SLiC's hinge), as TRL's DPOTrainer computes it.
//
// Rows 2 p and 2 p + 1 are the chosen answer c and the rejected answer r of pair p. Of a row b
//   lp_b = sum over its targets t of w_bt log softmax(x_bt W^T)[label_bt]
// where w is 1 for the answer's tokens and 0 for all else, and ref_b is lp_b of the reference.
//   d = (lp_c - ref_c) - (lp_r - ref_r)
//   sigmoid  -(1 - s) log sigmoid(beta d) - s log sigmoid(-beta d)      s: label_smoothing
//   hinge    max(0, 1 - beta d)
//   ipo      (d' - 1 / (2 beta))^2, d' as d with each row divided by its sum of w
//   reward_b = beta (lp_b - ref_b)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/ops/preference_options.h"

namespace troupe {

struct PreferenceRows {
  const at::Tensor& policy_B;     // lp; f32, or f64
  const at::Tensor& reference_B;  // ref, of the same type
  const at::Tensor& targets_B;    // the sum of w
};

struct PreferenceLoss {
  at::Tensor loss;  // the sum over the pairs; gradients for policy_B
  // Sums over the pairs, without gradients, [3]: of the chosen answers' rewards, of the rejected
  // ones', and of the pairs whose chosen reward is the larger one.
  at::Tensor rewards_3;
};

// B is even; of no pairs both are 0.
PreferenceLoss preference_loss(const PreferenceRows& rows, const PreferenceOptions& options);

// lp of `rows` rows of as many tokens each: x [T, D], W [V, D], labels int64 [T], w [T] in the wide
// type of x. Logits exist for `chunk` tokens at a time. Gradients for x and W.
struct HeadTokens {
  const at::Tensor& x_TD;
  const at::Tensor& weight_VD;
  const at::Tensor& labels_T;
  const at::Tensor& weights_T;
};
at::Tensor row_log_probs(const HeadTokens& head, int64_t rows, int64_t chunk);

}  // namespace troupe
