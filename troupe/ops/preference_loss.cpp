#include "troupe/ops/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/cross_entropy.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// Of values [B] those of the chosen rows less those of the rejected ones: [B / 2].
at::Tensor chosen_less_rejected(const at::Tensor& values_B) {
  const at::Tensor pairs = values_B.view({values_B.numel() / 2, 2});
  return pairs.select(1, 0) - pairs.select(1, 1);
}

at::Tensor loss_of_pairs(const at::Tensor& ratio_B, const at::Tensor& targets_B,
                         const PreferenceOptions& o) {
  if (o.loss == PreferenceForm::kIpo) {
    const at::Tensor mean = ratio_B / targets_B.clamp_min(1);
    return (chosen_less_rejected(mean) - 1 / (2 * o.beta)).square();
  }
  const at::Tensor logits = chosen_less_rejected(ratio_B) * o.beta;
  if (o.loss == PreferenceForm::kHinge) return (1 - logits).clamp_min(0);
  at::Tensor loss = at::log_sigmoid(logits) * (o.label_smoothing - 1);
  if (o.label_smoothing == 0) return loss;
  return loss - at::log_sigmoid(-logits) * o.label_smoothing;
}

at::Tensor rewards_of(const at::Tensor& ratio_B, double beta) {
  const at::NoGradGuard no_grad;
  const at::Tensor pairs = ratio_B.detach().view({ratio_B.numel() / 2, 2}) * beta;
  const at::Tensor chosen = pairs.select(1, 0), rejected = pairs.select(1, 1);
  return at::stack(
      {chosen.sum(), rejected.sum(), (chosen > rejected).to(pairs.scalar_type()).sum()});
}

}  // namespace

PreferenceLoss preference_loss(const PreferenceRows& rows, const PreferenceOptions& options) {
  const int64_t B = rows.policy_B.numel();
  TROUPE_CHECK(B % 2 == 0 && rows.reference_B.numel() == B && rows.targets_B.numel() == B,
               "preference_loss: rows of the policy", B, ", of the reference",
               rows.reference_B.numel(), ", targets of", rows.targets_B.numel(),
               ": pairs have two rows each");
  TROUPE_CHECK(options.beta > 0, "preference_loss: beta is", options.beta);
  const at::Tensor ratio_B = rows.policy_B - rows.reference_B;
  return {loss_of_pairs(ratio_B, rows.targets_B, options).sum(), rewards_of(ratio_B, options.beta)};
}

at::Tensor row_log_probs(const HeadTokens& head, int64_t rows, int64_t chunk) {
  const int64_t T = head.x_TD.size(0);
  if (rows == 0) {  // of no row, and yet a function of x
    return head.x_TD.to(wide_type(head.x_TD)).sum(1);
  }
  TROUPE_CHECK(T % rows == 0, "row_log_probs:", T, "tokens in", rows, "rows");
  const int64_t S = T / rows;
  std::vector<at::Tensor> out;
  for (int64_t b = 0; b < rows; ++b) {
    CrossEntropyOptions options;
    options.weight_T = head.weights_T.narrow(0, b * S, S);
    out.push_back(-linear_cross_entropy(head.x_TD.narrow(0, b * S, S), head.weight_VD,
                                        head.labels_T.narrow(0, b * S, S), options, chunk)
                       .first);
  }
  return at::stack(out);
}

}  // namespace troupe
