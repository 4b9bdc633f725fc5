#include "troupe/nn/attention/context_slice.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "troupe/core/check.h"
#include "troupe/nn/attention/ahead.h"
#include "troupe/nn/attention/packing.h"

namespace troupe {
namespace {

WholeRows rows_of(const Batch& whole) {
  WholeRows out{.rows = whole.ids_BS.size(0)};
  if (!whole.documents_BS.defined()) return out;
  const at::Tensor documents = whole.documents_BS.contiguous();
  const auto* const begin = documents.const_data_ptr<int32_t>();
  out.documents.assign(begin, begin + documents.numel());
  return out;
}

// Each token's place in its row or document.
at::Tensor whole_positions(const Batch& whole) {
  const Packing packing = packing_of(whole.documents_BS, whole.positions_BS, at::kCPU);
  if (packing.positions_BS.defined()) return packing.positions_BS;
  const int64_t B = whole.ids_BS.size(0), S = whole.ids_BS.size(1);
  return at::arange(S, at::kLong).expand({B, S}).contiguous();
}

}  // namespace

ContextSlice::ContextSlice(TokenChunks chunks, int64_t rank, WholeRows whole,
                           const c10::Device& device)
    : chunks_(std::move(chunks)),
      rank_(rank),
      whole_(std::move(whole)),
      device_(device),
      places_T_(at::tensor(own_places(chunks_, rank_, whole_.rows), at::kLong).to(device)) {}

std::shared_ptr<const KeyRows> ContextSlice::keys(int64_t window) const {
  std::shared_ptr<const KeyRows>& out = keys_[window];
  if (!out) {
    const KeyPlan plan = key_plan(chunks_, rank_, whole_, window);
    out = std::make_shared<const KeyRows>(key_rows(plan, device_));
  }
  return out;
}

std::shared_ptr<const RingRows> ContextSlice::ring(int64_t window) const {
  std::shared_ptr<const RingRows>& out = ring_[window];
  if (!out) {
    out = std::make_shared<const RingRows>(
        ring_rows(ring_plan(chunks_, rank_, whole_, window), device_));
  }
  return out;
}

int64_t ContextSlice::most(const TokenSharding& tensor) const {
  const int64_t own = whole_.rows * chunks_.own_tokens();
  return (own + tensor.ranks() - 1) / tensor.ranks();
}

at::Tensor ContextSlice::order(const TokenSharding& tensor) const {
  at::Tensor& out = order_[tensor.ranks()];
  if (out.defined()) return out;
  std::vector<int64_t> order(static_cast<size_t>(all()));
  const int64_t n = most(tensor);
  for (int64_t c = 0; c < ranks(); ++c) {
    const std::vector<int64_t> own = own_places(chunks_, c, whole_.rows);
    for (int64_t r = 0; r < tensor.ranks(); ++r) {
      const TokenRange range = tensor.of_rank(r, std::ssize(own));
      for (int64_t i = 0; i < range.count; ++i) {
        const int64_t place = own[static_cast<size_t>(range.from + i)];
        order[static_cast<size_t>(place)] = (c * tensor.ranks() + r) * n + i;
      }
    }
  }
  out = at::tensor(order, at::kLong).to(device_);
  return out;
}

std::vector<int64_t> ContextSlice::lengths() const {
  if (whole_.documents.empty()) {
    return std::vector<int64_t>(static_cast<size_t>(whole_.rows), row_tokens());
  }
  std::vector<int64_t> out;
  for (int64_t t = 0; t < all(); ++t) {
    const auto at = static_cast<size_t>(t);
    const bool begins = t % row_tokens() == 0 || whole_.documents[at] != whole_.documents[at - 1];
    if (begins) out.push_back(0);
    ++out.back();
  }
  return out;
}

Batch cut_batch(const Batch& whole, const RowCut& cut, const c10::Device& device) {
  TROUPE_CHECK(whole.ids_BS.defined() && whole.ids_BS.is_cpu() && whole.cache == nullptr,
               "a batch is cut on the host, for training or evaluation");
  const bool alone = cut.ranks == 1;
  const TokenChunks chunks = dealt(cut.dealing, cut.ranks, whole.ids_BS.size(1), rows_of(whole));
  const at::Tensor own = at::tensor(chunks.tokens_of(cut.rank), at::kLong);
  const auto part = [&](const at::Tensor& x_BS) {
    if (!x_BS.defined()) return x_BS;
    return (alone ? x_BS : x_BS.index_select(1, own)).to(device);
  };
  Batch out{.ids_BS = part(whole.ids_BS),
            .labels_BS = part(whole.labels_BS),
            .weights_BS = part(whole.weights_BS),
            .documents_BS = alone ? part(whole.documents_BS) : at::Tensor(),
            .positions_BS = part(alone ? whole.positions_BS : whole_positions(whole)),
            .valid_BS = part(whole.valid_BS)};
  if (cut.depth > 0 && whole.labels_BS.defined()) {
    for (const AheadTokens& ahead : ahead_of(whole, cut.depth)) {
      out.ahead.push_back({part(ahead.ids_BS), part(ahead.labels_BS), part(ahead.weights_BS)});
    }
  }
  const at::Tensor places =
      at::tensor(own_places(chunks, cut.rank, whole.ids_BS.size(0)), at::kLong);
  for (const at::Tensor& ids_TK : whole.replay_TK) {
    const bool cuts = !alone && ids_TK.defined();
    out.replay_TK.push_back(cuts ? ids_TK.index_select(0, places.to(ids_TK.device())).to(device)
                                 : ids_TK);
  }
  if (!alone) {
    out.slice = std::make_shared<const ContextSlice>(chunks, cut.rank, rows_of(whole), device);
  }
  return out;
}

}  // namespace troupe
