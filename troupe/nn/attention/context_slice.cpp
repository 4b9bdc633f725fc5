#include "troupe/nn/attention/context_slice.h"

#include <ATen/ops/tensor.h>

#include <utility>

namespace troupe {
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

}  // namespace troupe
