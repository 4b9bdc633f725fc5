#include "troupe/ops/moe_ffn/fp8_largest.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// max |x|, or of each row the row's, in f32. A NaN is the largest.
at::Tensor largest_of(const std::tuple<at::Tensor, at::Tensor>& low_and_high) {
  const auto& [low, high] = low_and_high;
  return at::maximum(high, low.neg()).to(at::kFloat);
}

at::Tensor no_largest(const at::Tensor& x) {
  return at::zeros({1}, x.options().dtype(at::kFloat));
}

// `own`: [1], of the values at hand.
at::Tensor by_recipe(const at::Tensor& own, const Fp8Use& use) {
  if (use.fp8.recipe == Fp8Recipe::kTensor) return own;
  TROUPE_CHECK(use.fp8.history != nullptr, "recipe delayed without Fp8Options::history");
  return use.fp8.history->largest(use.operand, own, use.counts);
}

}  // namespace

std::optional<at::Tensor> shared_largest(const at::Tensor& x, const Fp8Use& use) {
  if (!has_one_scale(use.fp8.recipe)) return std::nullopt;
  if (x.sym_numel() == 0) return by_recipe(no_largest(x), use);
  return by_recipe(largest_of(at::aminmax(x)).view({1}), use);
}

std::optional<at::Tensor> shared_tokens_largest(const at::Tensor& x, const Plan& plan,
                                                const Fp8Use& use) {
  if (!has_one_scale(use.fp8.recipe)) return std::nullopt;
  if (x.sym_numel() == 0 || plan.row_src.sym_numel() == 0) return by_recipe(no_largest(x), use);
  const at::Tensor of_tokens = largest_of(at::aminmax(x, 1));
  const at::Tensor of_rows = at::index_select(of_tokens, 0, plan.row_src.clamp_min(0));
  return by_recipe(of_rows.masked_fill(plan.row_src.lt(0), 0).amax().view({1}), use);
}

std::optional<at::Tensor> shared_weight_largest(const at::Tensor& w, Fp8Recipe recipe) {
  if (!has_one_scale(recipe)) return std::nullopt;
  return largest_of(at::aminmax(w.reshape({w.size(0), w.size(1) * w.size(2)}), 1));
}

std::optional<at::Tensor> times_factor(const std::optional<at::Tensor>& largest,
                                       const at::Tensor& factor_R) {
  if (!largest.has_value() || factor_R.sym_size(0) == 0) return largest;
  return *largest * factor_R.slice(0, 0, 1);
}

}  // namespace troupe
