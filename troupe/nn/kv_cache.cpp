#include "troupe/nn/kv_cache.h"

#include <ATen/ops/empty.h>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Its rows, made at the first call, and the part that is filled once `x` is written.
at::Tensor written(at::Tensor& all, const at::Tensor& x, int64_t length, int64_t capacity) {
  if (!all.defined()) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[1] = capacity;
    all = at::empty(sizes, x.options().requires_grad(false));
  }
  TROUPE_CHECK(all.size(0) == x.size(0), "the cache holds", all.size(0), "sequences, not",
               x.size(0));
  all.narrow(1, length, x.size(1)).copy_(x.detach());
  return all.narrow(1, 0, length + x.size(1));
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KvCache::extend(int64_t layer, const at::Tensor& a,
                                                  const at::Tensor& b) {
  TROUPE_CHECK(length_ + a.size(1) <= capacity_, "the cache has room for", capacity_, "tokens, not",
               length_ + a.size(1));
  Held& held = held_.at(layer);
  return {written(held.a, a, length_, capacity_), written(held.b, b, length_, capacity_)};
}

void KvCache::advance(int64_t n) {
  TROUPE_CHECK(n >= 0 && length_ + n <= capacity_, "the cache has room for", capacity_,
               "tokens, not", length_ + n);
  length_ += n;
}

}  // namespace troupe
