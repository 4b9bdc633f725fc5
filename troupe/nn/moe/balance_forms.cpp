#include "troupe/nn/moe/balance_forms.h"

#include "troupe/core/check.h"

namespace troupe {
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

}  // namespace troupe
