#include "troupe/train/step/feed.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/data/tokens/row_part.h"

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

at::Tensor longs(const at::Tensor& x) {
  return x.to(at::kLong);
}

// A rank's part of a microbatch, as tensors.
Batch batch_of(const RowPart& part, std::shared_ptr<const ContextSlice> slice,
               const c10::Device& device) {
  const auto tensor = [&](const auto& values, at::ScalarType type) {
    return tensor_of(values, part.B, part.n, type, device);
  };
  Batch out{.ids_BS = longs(tensor(part.ids, at::kInt)),
            .labels_BS = longs(tensor(part.labels, at::kInt)),
            .weights_BS = tensor(part.weights, at::kFloat),
            .positions_BS = longs(tensor(part.positions, at::kInt)),
            .valid_BS = part.valid ? tensor(*part.valid, at::kBool) : at::Tensor(),
            .slice = std::move(slice)};
  for (const AheadPart& ahead : part.ahead) {
    out.ahead.push_back({longs(tensor(ahead.ids, at::kInt)), longs(tensor(ahead.labels, at::kInt)),
                         tensor(ahead.weights, at::kFloat)});
  }
  return out;
}

// Rows [from, from + count) of one tensor of all rows.
struct Rows {
  int64_t from = 0, count = 0;
  at::Tensor of(const at::Tensor& x) const { return x.defined() ? x.narrow(0, from, count) : x; }
};

// Microbatches of whole rows, which are views of one tensor of each kind.
class WholeMicrobatches {
 public:
  WholeMicrobatches(const TokenBatch& batch, const c10::Device& device)
      : S_(batch.S),
        ids_(longs(tensor_of(batch.ids, batch.B, S_ + 1, at::kInt, device))),
        weights_(tensor_of(batch.weights, batch.B, S_, at::kFloat, device)) {
    const RowDocuments documents = row_documents(batch);
    if (documents.numbers.empty()) return;
    documents_ = tensor_of(documents.numbers, batch.B, S_, at::kInt, device);
    positions_ = longs(tensor_of(batch.positions, batch.B, S_, at::kInt, device));
    if (!documents.padded) return;
    valid_ = tensor_of(valid_tokens(batch), batch.B, S_, at::kBool, device);
  }

  Batch at(int64_t from, int64_t count) const {
    const Rows rows{from, count};
    return {.ids_BS = rows.of(ids_).narrow(1, 0, S_).contiguous(),
            .labels_BS = rows.of(ids_).narrow(1, 1, S_).contiguous(),
            .weights_BS = rows.of(weights_),
            .documents_BS = rows.of(documents_),
            .positions_BS = rows.of(positions_),
            .valid_BS = rows.of(valid_)};
  }

 private:
  int64_t S_;
  at::Tensor ids_, weights_, documents_, valid_, positions_;
};

// Microbatches of this rank's part of each row.
class PartMicrobatches {
 public:
  PartMicrobatches(const TokenBatch& rows, const RowCut& cut, const c10::Device& device)
      : rows_(rows), cut_(cut), device_(device), documents_(row_documents(rows)) {}

  Batch at(int64_t from, int64_t count) const {
    WholeRows whole{.rows = count};
    if (!documents_.numbers.empty()) {
      const auto first = documents_.numbers.begin() + from * rows_.S;
      whole.documents.assign(first, first + count * rows_.S);
    }
    const TokenChunks chunks = dealt(cut_.dealing, cut_.ranks, rows_.S, whole);
    const RowPart part =
        part_of(rows_, from, count, documents_, chunks.tokens_of(cut_.rank), cut_.depth);
    return batch_of(part, std::make_shared<const ContextSlice>(chunks, cut_.rank, whole, device_),
                    device_);
  }

 private:
  const TokenBatch& rows_;
  const RowCut& cut_;
  c10::Device device_;
  RowDocuments documents_;
};

// at(from, count): the tensors of a microbatch's rows.
template <class Microbatches>
Feed feed_of(const TokenBatch& batch, int64_t micro, int64_t steps, const Microbatches& all) {
  TROUPE_CHECK(micro > 0 && batch.B % micro == 0, "microbatches of", micro, "out of", batch.B);
  Feed out{.first_sample = batch.first_sample, .samples = batch.B};
  const TargetSums targets = target_sums(batch);
  out.weight_sum = targets.weight;
  out.loss_tokens = targets.tokens;
  out.all_microbatches = batch.B / micro;
  for (int64_t m = 0; m < std::max(batch.B, steps * micro); m += micro) {
    const int64_t from = std::min(m, batch.B), count = std::min(micro, batch.B - from);
    const auto first = batch.weights.begin() + from * batch.S;
    out.weights.push_back(std::accumulate(first, first + count * batch.S, 0.));
    out.microbatches.push_back(all.at(from, count));
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
  Feed out;
  if (cut.ranks == 1) {
    out = feed_of(batch, micro, steps, WholeMicrobatches(batch, device));
  } else {
    const TokenBatch rows = padded_rows(batch, padded_tokens(cut.ranks, batch.S) - batch.S);
    out = feed_of(rows, micro, steps, PartMicrobatches(rows, cut, device));
  }
  out.tokens = batch.B * batch.S;
  return out;
}

}  // namespace troupe
