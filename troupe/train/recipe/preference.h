// `train.loss: dpo`: learns from preference pairs (data build --layout preference), beside the same
// model without its adapters. ops/preference_loss.h has the formulas, train.dpo the numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/ops/preference_options.h"

namespace troupe {

struct Recipe;

enum class LossKind { kCrossEntropy, kDpo };
constexpr auto names_of(LossKind) {
  return std::array{Named{"cross_entropy", LossKind::kCrossEntropy}, Named{"dpo", LossKind::kDpo}};
}

// The two keys in `train`.
void visit_loss(auto& c, auto&& f) {
  f("loss", c.loss,
    "cross_entropy of the targets, or dpo: of preference pairs, beside the model without its "
    "adapters.");
  f("dpo", c.dpo, "Loss of preference pairs, of train.loss: dpo.");
}

// Rows that no split into microbatches may part: 2 of preference pairs, else 1.
int64_t rows_together(const Recipe& recipe);

// (path, fault): what preference pairs do not go with, and what of train.dpo is out of bounds.
std::vector<std::pair<std::string, std::string>> preference_faults(const Recipe& recipe);

}  // namespace troupe
