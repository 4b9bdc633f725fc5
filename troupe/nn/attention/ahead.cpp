#include "troupe/nn/attention/ahead.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/roll.h>

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {

std::vector<AheadTokens> ahead_of(const Batch& whole, int64_t depth) {
  TROUPE_CHECK(whole.slice == nullptr,
               "tokens ahead are made of whole rows, before these are cut over ranks");
  const int64_t S = whole.ids_BS.size(1);
  std::vector<AheadTokens> out;
  for (int64_t d = 1; d <= depth; ++d) {
    const int64_t beyond = std::min(d, S);  // the last positions have no target
    at::Tensor labels = at::roll(whole.labels_BS, -d, 1);
    labels.narrow(1, S - beyond, beyond).fill_(kIgnoredLabel);
    if (whole.documents_BS.defined()) {
      const at::Tensor document = whole.documents_BS.to(labels.device());
      labels = labels.masked_fill(at::roll(document, -d, 1) != document, kIgnoredLabel);
    }
    out.push_back({at::roll(whole.ids_BS, -d, 1), labels,
                   whole.weights_BS.defined() ? at::roll(whole.weights_BS, -d, 1) : at::Tensor()});
  }
  return out;
}

}  // namespace troupe
