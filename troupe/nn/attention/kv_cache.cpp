#include "troupe/nn/attention/kv_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "troupe/core/check.h"

namespace troupe {
namespace {

at::Tensor room_like(const at::Tensor& x, int64_t rows, int64_t capacity) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  sizes[1] = capacity;
  return at::empty(sizes, x.options().requires_grad(false));
}

at::Tensor states_like(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::zeros(sizes, x.options().requires_grad(false));
}

}  // namespace

KvCache::KvCache(int64_t layers, int64_t rows, int64_t capacity)
    : held_(layers), states_(layers), capacity_(capacity), lengths_(rows), used_(rows) {
  std::iota(used_.begin(), used_.end(), 0);
}

void KvCache::use(std::vector<int64_t> rows) {
  for (const int64_t row : rows) {
    TROUPE_CHECK(0 <= row && row < this->rows(), "row", row, "of a cache of", this->rows());
  }
  used_ = std::move(rows);
}

at::Tensor KvCache::positions(int64_t n) const {
  const auto B = static_cast<int64_t>(used_.size());
  at::Tensor out = at::empty({B, n}, at::kLong);
  auto* const data = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < B; ++i) std::iota(data + i * n, data + (i + 1) * n, past(i));
  return out;
}

void KvCache::extend(int64_t layer, const at::Tensor& a, const at::Tensor& b) {
  const auto B = static_cast<int64_t>(used_.size());
  TROUPE_CHECK(a.size(0) == B && b.size(0) == B, "the cache was given", B, "rows, the tensors have",
               a.size(0));
  Held& held = held_.at(layer);
  if (!held.a.defined()) {
    held = {room_like(a, rows(), capacity_), room_like(b, rows(), capacity_)};
  }
  for (int64_t i = 0; i < B; ++i) {
    const int64_t row = used_[i], from = lengths_[row], n = a.size(1);
    TROUPE_CHECK(from + n <= capacity_, "the cache has room for", capacity_, "tokens a row, not",
                 from + n);
    held.a[row].narrow(0, from, n).copy_(a[i]);
    held.b[row].narrow(0, from, n).copy_(b[i]);
  }
}

std::pair<at::Tensor, at::Tensor> KvCache::row(int64_t layer, int64_t i, int64_t n) const {
  const Held& held = held_.at(layer);
  const int64_t row = used_.at(i), all = lengths_[row] + n;
  return {held.a[row].narrow(0, 0, all), held.b[row].narrow(0, 0, all)};
}

void KvCache::advance(int64_t n) {
  for (const int64_t row : used_) {
    TROUPE_CHECK(n >= 0 && lengths_[row] + n <= capacity_, "the cache has room for", capacity_,
                 "tokens a row, not", lengths_[row] + n);
    lengths_[row] += n;
  }
}

KvCache::States KvCache::states(int64_t layer) const {
  const States& held = states_.at(layer);
  if (!held.a.defined()) return {};
  const at::Tensor rows = at::tensor(used_, at::kLong).to(held.a.device());
  States out{held.a.index_select(0, rows), held.b.index_select(0, rows)};
  for (int64_t i = 0; i < std::ssize(used_); ++i) {
    if (past(i) > 0) continue;
    out.a[i].zero_();
    out.b[i].zero_();
  }
  return out;
}

void KvCache::keep_states(int64_t layer, const States& states) {
  States& held = states_.at(layer);
  if (!held.a.defined()) held = {states_like(states.a, rows()), states_like(states.b, rows())};
  const at::Tensor rows = at::tensor(used_, at::kLong).to(held.a.device());
  held.a.index_copy_(0, rows, states.a);
  held.b.index_copy_(0, rows, states.b);
}

void KvCache::copy(int64_t from, int64_t to, int64_t n) {
  TROUPE_CHECK(0 <= n && n <= length(from), "row", from, "holds", length(from), "tokens, not", n);
  if (from != to && n > 0) {
    for (Held& held : held_) {
      if (!held.a.defined()) continue;  // a layer without attention
      held.a[to].narrow(0, 0, n).copy_(held.a[from].narrow(0, 0, n));
      held.b[to].narrow(0, 0, n).copy_(held.b[from].narrow(0, 0, n));
    }
  }
  for (States& held : states_) {
    if (!held.a.defined() || n == 0) continue;
    TROUPE_CHECK(n == length(from), "row", from, "has the states of", length(from),
                 "tokens, not of", n);
    if (from == to) continue;
    held.a[to].copy_(held.a[from]);
    held.b[to].copy_(held.b[from]);
  }
  lengths_.at(to) = n;
}

void KvCache::grow(int64_t rows, int64_t capacity) {
  rows = std::max(rows, this->rows());
  capacity = std::max(capacity, capacity_);
  if (rows == this->rows() && capacity == capacity_) return;
  for (Held& held : held_) {
    for (at::Tensor* const x : {&held.a, &held.b}) {
      if (!x->defined()) continue;
      const at::Tensor old = *x;
      *x = room_like(old, rows, capacity);
      x->narrow(0, 0, old.size(0)).narrow(1, 0, old.size(1)).copy_(old);
    }
  }
  for (States& held : states_) {
    for (at::Tensor* const x : {&held.a, &held.b}) {
      if (!x->defined()) continue;
      const at::Tensor old = *x;
      *x = states_like(old, rows);
      x->narrow(0, 0, old.size(0)).copy_(old);
    }
  }
  lengths_.resize(rows);
  capacity_ = capacity;
}

}  // namespace troupe
