// What the loss of a step is a mean of.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

// With n_m the sum of microbatch m's weights and L_m that of its weighted token losses, of the M
// microbatches of all ranks:
//   tokens        sum L_m / sum n_m            (D2): no split into microbatches or ranks changes it
//   microbatches  1/M sum over m of L_m / n_m  (D1): a microbatch without targets adds 0
enum class LossMean { kTokens, kMicrobatches };
constexpr auto names_of(LossMean) {
  return std::array{Named{"tokens", LossMean::kTokens},
                    Named{"microbatches", LossMean::kMicrobatches}};
}

// What L_m counts in it, of those microbatches whose weights are given.
inline std::vector<double> loss_factors(LossMean mean, const std::vector<double>& weights,
                                        double all_weights, int64_t all_microbatches) {
  std::vector<double> out;
  for (const double n : weights) {
    const double over =
        mean == LossMean::kTokens ? all_weights : n * static_cast<double>(all_microbatches);
    out.push_back(over > 0 ? 1 / over : 0);
  }
  return out;
}

}  // namespace troupe
