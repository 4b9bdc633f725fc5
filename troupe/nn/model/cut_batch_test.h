// A rank's part of a microbatch of tensors, for tests of models; a run cuts rows on the host
// (data/tokens/row_part.h).
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <memory>

#include "troupe/distributed/mesh/dealing.h"
#include "troupe/nn/attention/ahead.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/attention/packing.h"
#include "troupe/nn/config/batch.h"

namespace troupe {

inline Batch cut_batch(const Batch& whole, const RowCut& cut) {
  const int64_t B = whole.ids_BS.size(0), S = whole.ids_BS.size(1);
  WholeRows rows{.rows = B};
  if (whole.documents_BS.defined()) {
    const at::Tensor documents = whole.documents_BS.contiguous();
    const auto* const begin = documents.const_data_ptr<int32_t>();
    rows.documents.assign(begin, begin + documents.numel());
  }
  const TokenChunks chunks = dealt(cut.dealing, cut.ranks, S, rows);
  const at::Tensor own = at::tensor(chunks.tokens_of(cut.rank), at::kLong);
  const auto part = [&](const at::Tensor& x_BS) {
    return x_BS.defined() ? x_BS.index_select(1, own) : x_BS;
  };
  at::Tensor positions = packing_of(whole.documents_BS, whole.positions_BS, at::kCPU).positions_BS;
  if (!positions.defined()) positions = at::arange(S, at::kLong).expand({B, S});
  Batch out{.ids_BS = part(whole.ids_BS),
            .labels_BS = part(whole.labels_BS),
            .weights_BS = part(whole.weights_BS),
            .positions_BS = part(positions),
            .valid_BS = part(whole.valid_BS),
            .slice = std::make_shared<const ContextSlice>(chunks, cut.rank, rows, at::kCPU)};
  for (const AheadTokens& ahead : ahead_of(whole, cut.depth)) {
    out.ahead.push_back({part(ahead.ids_BS), part(ahead.labels_BS), part(ahead.weights_BS)});
  }
  return out;
}

}  // namespace troupe
