// The same balance pressure in other systems' terms (the table of section 3.1). Their losses differ
// in form, so a coefficient means nothing without it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

enum class BalanceForm {
  kTroupe,       // a LB summed over layers: Megatron-Core, and A1-A3; also v0.5-v0.6
  kMegaBlocks,   // w, the mean of LB over layers: MegaBlocks, LLM-Foundry, and A4
  kHuggingFace,  // f and P pooled over all layers before the product, f not divided by k: Mixtral
};
constexpr auto names_of(BalanceForm) {
  return std::array{Named{"troupe", BalanceForm::kTroupe},
                    Named{"megablocks", BalanceForm::kMegaBlocks},
                    Named{"huggingface", BalanceForm::kHuggingFace}};
}

// What the whole model's loss is at perfect balance: a L, w, a k.
double value_at_balance(BalanceForm form, double coefficient, int64_t layers, int64_t top_k);

// The coefficient with the same value at balance in the other form.
double convert_coefficient(double coefficient, BalanceForm from, BalanceForm to, int64_t layers,
                           int64_t top_k);

// The whole model's loss in that form from the layers' counts [E], sums of r [E] and N tokens.
struct LayerBalance {
  at::Tensor counts_E, probs_E;
};
at::Tensor balance_value(BalanceForm form, double coefficient,
                         const std::vector<LayerBalance>& layers, int64_t tokens, int64_t top_k);

}  // namespace troupe
