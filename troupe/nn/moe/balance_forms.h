// The same balance pressure in other systems' terms. Their losses differ in form, so a coefficient
// means nothing without its form. LB is the loss of one layer (nn/moe/moe_losses.h).
#pragma once

#include <cstdint>

namespace troupe {

enum class BalanceForm {
  kTroupe,       // a LB summed over layers: Megatron-Core, and aux, seq and global here
  kMegaBlocks,   // w, the mean of LB over layers: MegaBlocks, LLM-Foundry, batched here
  kHuggingFace,  // a E f P, f and P pooled over all layers before the product, f not divided by k
};
// What the whole model's loss is at perfect balance: a L, w, a k.
double value_at_balance(BalanceForm form, double coefficient, int64_t layers, int64_t top_k);

// The coefficient with the same value at balance in the other form.
double convert_coefficient(double coefficient, BalanceForm from, BalanceForm to, int64_t layers,
                           int64_t top_k);

}  // namespace troupe
