// Expert choice (R13): kernels/expert_choice has the formulas. Gradients flow from weights and
// lse_squares to the logits.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/kernels/expert_choice/expert_choice.h"

namespace troupe {

struct ExpertChoiceOptions {
  ExpertChoiceRule rule = {};
  at::Tensor valid_T = {};       // bool (G3)
  at::Tensor given_ids_TE = {};  // int32: takes the pairs with given[t, e] == e (R15)
};

struct ExpertChoiceResult {
  at::Tensor ids_TE;       // int32: e where taken, else -1
  at::Tensor weights_TE;   // f32, f64 beside f64 logits; 0 where not taken
  at::Tensor counts_E;     // int64
  at::Tensor lse_squares;  // scalar, as weights: for the z-loss
};

ExpertChoiceResult expert_choice(const at::Tensor& logits_TE, const ExpertChoiceOptions& options);

}  // namespace troupe
