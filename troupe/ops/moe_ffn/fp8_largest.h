// The maximum that a tensor's one scale is made of, under a recipe whose groups share a scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troupe/ops/moe_ffn/fp8_history.h"
#include "troupe/ops/support/plan.h"

namespace troupe {

// An operand of a product: how it is rounded, which it is, and whether a gradient follows, so that
// recipe delayed counts its values.
struct Fp8Use {
  const Fp8Options& fp8;
  Fp8Operand operand;
  bool counts;
};

// What `largest` of ops/fp8.h is under a recipe: of a tensor with one scale max |x|, [1], or of each
// matrix of a stack [E, N, K], [E]; absent where each group has its own. Recipe delayed puts the
// operand's history in place of max |x|.
std::optional<at::Tensor> shared_largest(const at::Tensor& x, const Fp8Use& use);
// Of the rows of tokens that some expert has; what others hold nobody may have written.
std::optional<at::Tensor> shared_tokens_largest(const at::Tensor& x_TD, const Plan& plan,
                                                const Fp8Use& use);
std::optional<at::Tensor> shared_weight_largest(const at::Tensor& w_ENK, Fp8Recipe recipe);
// The same of rows that take up a factor before they are rounded; factor [R] is one number then.
std::optional<at::Tensor> times_factor(const std::optional<at::Tensor>& largest,
                                       const at::Tensor& factor_R);

}  // namespace troupe
