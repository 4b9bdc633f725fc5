#include "troupe/train/step/feed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Pinned on its way to a GPU: from other memory the host would wait for all that the GPU has to do
// before.
template <class T>
at::Tensor tensor_of(const std::vector<T>& values, int64_t rows, int64_t columns,
                     at::ScalarType type, const c10::Device& device) {
  at::Tensor out =
      at::empty({rows, columns}, at::TensorOptions(type).pinned_memory(device.is_cuda()));
  std::memcpy(out.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return out.to(device, type, /*non_blocking=*/true);
}

// Pads each row with `more` tokens, which belong to no document and do not count.
TokenBatch padded(const TokenBatch& batch, int64_t more) {
  TokenBatch out = batch;
  out.S = batch.S + more;
  const auto rows = [&](auto& to, const auto& from, int64_t width, auto fill) {
    to.clear();
    for (int64_t b = 0; b < batch.B; ++b) {
      to.insert(to.end(), from.begin() + b * width, from.begin() + (b + 1) * width);
      to.insert(to.end(), static_cast<size_t>(more), fill);
    }
  };
  rows(out.ids, batch.ids, batch.S + 1, int32_t{0});
  rows(out.weights, batch.weights, batch.S, 0.0F);
  rows(out.documents, batch.documents, batch.S, int32_t{-1});
  rows(out.positions, batch.positions, batch.S, int32_t{0});
  return out;
}

Feed whole_feed(const TokenBatch& batch, int64_t micro, const c10::Device& device, int64_t steps) {
  TROUPE_CHECK(micro > 0 && batch.B % micro == 0, "microbatches of", micro, "out of", batch.B);
  Feed out{.first_sample = batch.first_sample, .samples = batch.B, .tokens = batch.B * batch.S};
  const TargetSums targets = target_sums(batch);
  out.weight_sum = targets.weight;
  out.loss_tokens = targets.tokens;
  const auto& documents = batch.documents;
  const bool padded = std::find(documents.begin(), documents.end(), -1) != documents.end();
  const bool several = std::any_of(documents.begin(), documents.end(), [](int d) { return d > 0; });
  const at::Tensor ids = tensor_of(batch.ids, batch.B, batch.S + 1, at::kInt, device).to(at::kLong);
  const at::Tensor weights = tensor_of(batch.weights, batch.B, batch.S, at::kFloat, device);
  at::Tensor document, position, valid;
  if (padded || several) {
    document = tensor_of(documents, batch.B, batch.S, at::kInt, device);
    position = tensor_of(batch.positions, batch.B, batch.S, at::kInt, device).to(at::kLong);
    if (padded) {
      valid = document >= 0;
      // Padding is one more document, behind the row's last: numbers never fall along a row.
      document = at::where(valid, document, std::get<0>(document.cummax(1)) + 1).to(at::kInt);
    }
  }
  out.all_microbatches = batch.B / micro;
  for (int64_t m = 0; m < std::max(batch.B, steps * micro); m += micro) {
    const int64_t from = std::min(m, batch.B), count = std::min(micro, batch.B - from);
    const auto first = batch.weights.begin() + from * batch.S;
    out.weights.push_back(std::accumulate(first, first + count * batch.S, 0.));
    const auto rows = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, from, count) : x;
    };
    out.microbatches.push_back({.ids_BS = rows(ids).narrow(1, 0, batch.S).contiguous(),
                                .labels_BS = rows(ids).narrow(1, 1, batch.S).contiguous(),
                                .weights_BS = rows(weights),
                                .documents_BS = rows(document),
                                .positions_BS = rows(position),
                                .valid_BS = rows(valid)});
  }
  return out;
}

}  // namespace

TargetSums target_sums(const TokenBatch& batch) {
  TargetSums out;
  for (const float w : batch.weights) {
    out.weight += w;
    out.tokens += w != 0;
  }
  return out;
}

Feed make_feed(const TokenBatch& batch, int64_t micro, const c10::Device& device, int64_t steps,
               const RowCut& cut) {
  if (cut.ranks == 1) return whole_feed(batch, micro, device, steps);
  const int64_t more = padded_tokens(cut.ranks, batch.S) - batch.S;
  Feed out = whole_feed(more > 0 ? padded(batch, more) : batch, micro, c10::kCPU, steps);
  out.tokens = batch.B * batch.S;
  for (Batch& m : out.microbatches) m = cut_batch(m, cut, device);
  return out;
}

}  // namespace troupe
