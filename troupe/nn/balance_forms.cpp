#include "troupe/nn/balance_forms.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include "troupe/core/check.h"
#include "troupe/nn/moe_losses.h"

namespace troupe {
namespace {

at::Tensor pooled(const std::vector<LayerBalance>& layers, double tokens) {
  at::Tensor counts, probs;
  for (const LayerBalance& l : layers) {
    counts = counts.defined() ? counts + l.counts_E : l.counts_E;
    probs = probs.defined() ? probs + l.probs_E : l.probs_E;
  }
  const double n = tokens * static_cast<double>(layers.size());
  const at::Tensor both = counts.to(at::kDouble) * probs.to(at::kDouble);
  return both.sum() * static_cast<double>(counts.size(0)) / (n * n);
}

}  // namespace

double value_at_balance(BalanceForm form, double coefficient, int64_t layers, int64_t top_k) {
  switch (form) {
    case BalanceForm::kTroupe: return coefficient * static_cast<double>(layers);
    case BalanceForm::kMegaBlocks: return coefficient;
    case BalanceForm::kHuggingFace: return coefficient * static_cast<double>(top_k);
  }
  fail(Code::kBrokenContract, "balance form", "unknown");
}

double convert_coefficient(double coefficient, BalanceForm from, BalanceForm to, int64_t layers,
                           int64_t top_k) {
  return value_at_balance(from, coefficient, layers, top_k) /
         value_at_balance(to, 1, layers, top_k);
}

at::Tensor balance_value(BalanceForm form, double coefficient,
                         const std::vector<LayerBalance>& layers, int64_t tokens, int64_t top_k) {
  TROUPE_CHECK(!layers.empty() && tokens > 0, "layers", layers.size(), "tokens", tokens);
  if (form == BalanceForm::kHuggingFace) {
    return pooled(layers, static_cast<double>(tokens)) * coefficient;
  }
  const at::Tensor n = at::full({}, tokens, layers[0].counts_E.options());
  at::Tensor sum;
  for (const LayerBalance& l : layers) {
    const at::Tensor lb = load_balance(fractions(l.counts_E, n, top_k), l.probs_E, n);
    sum = sum.defined() ? sum + lb : lb;
  }
  const double count = static_cast<double>(layers.size());
  return sum * (form == BalanceForm::kMegaBlocks ? coefficient / count : coefficient);
}

}  // namespace troupe
