#include "troupe/train/param_store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kAlign = 16;  // elements of f32: 64 bytes

int64_t bad_count(const at::Tensor& x) {
  return x.numel() - at::isfinite(x).sum().item<int64_t>();
}

}  // namespace

ParamStore::ParamStore(std::vector<NamedParam> params, const at::TensorOptions& options,
                       const std::function<BucketKey(const NamedParam&)>& key_of) {
  for (NamedParam& named : params) {
    Param& p = *named.param;
    if (!p.trainable()) {
      p.allocate(options);
      others_.push_back(std::move(named));
      continue;
    }
    const BucketKey key = key_of(named);
    const at::ScalarType dtype = p.fp32 ? at::kFloat : options.dtype().toScalarType();
    auto bucket = std::find_if(buckets_.begin(), buckets_.end(),
                               [&](const Bucket& b) { return b.key == key && b.dtype == dtype; });
    if (bucket == buckets_.end()) {
      bucket = buckets_.insert(bucket, Bucket{.key = key, .dtype = dtype});
    }
    bucket->members.push_back(static_cast<int64_t>(slots_.size()));
    slots_.push_back({std::move(named), bucket - buckets_.begin(), bucket->size});
    bucket->size += (p.numel() + kAlign - 1) / kAlign * kAlign;
  }
  for (Bucket& b : buckets_) {
    b.value = at::zeros({b.size}, options.dtype(b.dtype));
    b.master = b.has_master() ? at::zeros({b.size}, options.dtype(at::kFloat)) : b.value;
    for (const int64_t s : b.members) {
      Param& p = *slots_[static_cast<size_t>(s)].named.param;
      p.value = part(s, b.value).view(p.shown).detach().set_requires_grad(true);
    }
  }
  grads_.resize(slots_.size());
  is_sum_.resize(slots_.size());
}

void ParamStore::initialise_all(uint64_t seed) {
  for (const Slot& slot : slots_) initialise(*slot.named.param, slot.named.name, seed);
  for (const NamedParam& other : others_) initialise(*other.param, other.name, seed);
  masters_from_values();
}

void ParamStore::masters_from_values() {
  for (Bucket& b : buckets_) {
    if (b.has_master()) b.master.copy_(b.value);
  }
}

void ParamStore::values_from_masters() {
  for (Bucket& b : buckets_) {
    if (b.has_master()) b.value.copy_(b.master);
  }
}

void ParamStore::begin_step() {
  grads_.assign(slots_.size(), {});
  is_sum_.assign(slots_.size(), 0);
}

void ParamStore::add(int64_t slot, const at::Tensor& grad) {
  if (!grad.defined()) return;
  const auto s = static_cast<size_t>(slot);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = grad.detach().reshape({-1});
  if (!grads_[s].defined()) {
    grads_[s] = flat;
  } else if (is_sum_[s] != 0) {
    grads_[s].add_(flat);
  } else {  // not in place: others may hold the first
    grads_[s] = grads_[s].to(at::kFloat).add(flat);
    is_sum_[s] = 1;
  }
}

void ParamStore::end_step() {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (grads_[s].defined()) continue;
    const at::Tensor& value = slots_[s].named.param->value;
    grads_[s] = at::zeros({value.numel()}, value.options().dtype(at::kFloat));
  }
}

const at::Tensor& ParamStore::grad(int64_t slot) const {
  return grads_[static_cast<size_t>(slot)];
}

int64_t ParamStore::slot_of(const Param* param) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.named.param == param; });
  return found == slots_.end() ? -1 : found - slots_.begin();
}

at::Tensor ParamStore::part(int64_t slot, const at::Tensor& buffer) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  // Past the dispatcher: an update asks for hundreds.
  return at::native::as_strided_tensorimpl(buffer, {s.named.param->numel()}, {1},
                                           buffer.storage_offset() + s.offset);
}

namespace {

std::vector<BadValue> bad_in(const ParamStore& store,
                             const std::function<at::Tensor(int64_t slot)>& values_of) {
  std::vector<BadValue> out;
  for (size_t s = 0; s < store.slots().size(); ++s) {
    const auto& [name, param] = store.slots()[s].named;
    const at::Tensor all = values_of(static_cast<int64_t>(s));
    if (bad_count(all) == 0) continue;
    if (!param->per_expert) {
      out.push_back({name, bad_count(all), all.numel()});
      continue;
    }
    const int64_t each = all.numel() / static_cast<int64_t>(param->experts.size());
    for (size_t e = 0; e < param->experts.size(); ++e) {
      const int64_t bad = bad_count(all.narrow(0, static_cast<int64_t>(e) * each, each));
      if (bad > 0) out.push_back({expert_name(name, param->experts[e]), bad, each});
    }
  }
  return out;
}

}  // namespace

std::vector<BadValue> bad_values(const ParamStore& store, at::Tensor Bucket::*buffer) {
  return bad_in(store, [&](int64_t slot) {
    const int64_t bucket = store.slots()[static_cast<size_t>(slot)].bucket;
    return store.part(slot, store.buckets()[static_cast<size_t>(bucket)].*buffer);
  });
}

std::vector<BadValue> bad_gradients(const ParamStore& store) {
  return bad_in(store, [&](int64_t slot) { return store.grad(slot); });
}

}  // namespace troupe
