#include "troupe/train/params/param_store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/ops/support/give_back.h"
#include "troupe/ops/support/pinned_memory.h"

namespace troupe {
namespace {

constexpr int64_t kAlign = kMomentBlock;

int64_t rounded(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

at::ScalarType sum_type_of(const Sharing& sharing, const at::TensorOptions& options) {
  const bool f64 = options.dtype().toScalarType() == at::kDouble;
  return f64 && sharing.sum_type == at::kFloat ? at::kDouble : sharing.sum_type;
}

// How many parts of the hidden width an expert's matrix is cut into.
int64_t slices_of(const Param& p) {
  int64_t out = 1;
  for (size_t d = 1; d < p.size.size(); ++d) {
    if (p.size[d] > 0) out = std::max(out, p.global[d] / p.size[d]);
  }
  return out;
}

}  // namespace

ParamStore::ParamStore(std::vector<NamedParam> params, const at::TensorOptions& options,
                       const std::function<BucketKey(const NamedParam&)>& key_of, Sharing sharing,
                       StateHome state_home)
    : sharing_(std::move(sharing)),
      options_(options),
      state_home_(state_home),
      gradients_(buckets_, slots_, sum_type_of(sharing_, options), sharing_.alone, sharing_.exact) {
  for (NamedParam& named : params) {
    Param& p = *named.param;
    if (!p.trainable()) {
      p.allocate(options);
      others_.push_back(std::move(named));
      continue;
    }
    const Bucket wanted{.key = key_of(named),
                        .dtype = p.fp32 ? at::kFloat : options.dtype().toScalarType(),
                        .unit = sharing_.alone && !sharing_.by_unit ? -1 : named.unit,
                        .mesh = mesh_of(named)};
    auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) {
      return b.key == wanted.key && b.dtype == wanted.dtype && b.unit == wanted.unit &&
             b.mesh.name == wanted.mesh.name;
    });
    if (bucket == buckets_.end()) bucket = buckets_.insert(bucket, wanted);
    bucket->members.push_back(static_cast<int64_t>(slots_.size()));
    slots_.push_back({std::move(named), bucket - buckets_.begin(), bucket->size});
    bucket->size += rounded(p.numel(), kAlign);
  }
  for (Bucket& b : buckets_) make_buffers(b, options);
}

void ParamStore::make_buffers(Bucket& b, const at::TensorOptions& options) {
  const ProcessGroup& shard = *b.mesh.shard;
  b.summed = shard.size() > 1 || b.mesh.replicate->size() > 1;
  b.size = rounded(b.size, shard.size() * kAlign);
  b.own_size = b.size / shard.size();
  b.own_from = shard.rank() * b.own_size;
  b.dropped_between_uses = sharing_.full && shard.size() > 1;
  b.value = at::zeros({b.size}, options.dtype(b.dtype));
  const at::Tensor part_of_value = b.value.narrow(0, b.own_from, b.own_size);
  b.own = b.dropped_between_uses ? at::empty_like(part_of_value) : part_of_value;
  if (b.in_halves()) {
    b.low = state_zeros(b.own_size, at::kShort);
  } else {
    b.master = b.has_master() ? state_zeros(b.own_size, at::kFloat) : b.own;
  }
  for (const int64_t s : b.members) {
    const Slot& slot = slots_[static_cast<size_t>(s)];
    Param& p = *slot.named.param;
    // variable_data() gives it its own version counter: a gather that refills the buffer is then no
    // in-place change of values that autograd has saved.
    p.value = b.value.narrow(0, slot.offset, p.numel())
                  .view(p.shown)
                  .variable_data()
                  .set_requires_grad(true);
  }
  if (b.dropped_between_uses) release_memory(b.value);
}

at::Tensor ParamStore::state_zeros(int64_t n, at::ScalarType type) const {
  return state_home_ == StateHome::kHost ? pinned_zeros(n, type, options_.device())
                                         : at::zeros({n}, options_.dtype(type));
}

const ShardMesh& ShardMeshes::of(const NamedParam& named) const {
  const Param& p = *named.param;
  if (p.per_expert) {
    const auto sliced = experts.find(slices_of(p));
    return sliced == experts.end() ? experts.at(1) : sliced->second;
  }
  return (named.unit == 0 && !tables.empty() ? tables : dense).at(p.tensor_repeat(tensor));
}

ShardMesh ParamStore::mesh_of(const NamedParam& named) const {
  return sharing_.alone ? ShardMesh() : sharing_.meshes.of(named);
}

void ParamStore::initialize_all(uint64_t seed) {
  for (Bucket& b : buckets_) {
    const at::NoGradGuard no_grad;
    if (b.dropped_between_uses) {
      restore_memory(b.value);
      b.value.zero_();
    }
    for (const int64_t s : b.members) {
      const NamedParam& named = slots_[static_cast<size_t>(s)].named;
      initialize(*named.param, named.name, seed);
    }
    if (!b.dropped_between_uses) continue;
    b.own.copy_(b.value.narrow(0, b.own_from, b.own_size));
    release_memory(b.value);
  }
  for (const NamedParam& other : others_) initialize(*other.param, other.name, seed);
  masters_from_values();
}

void ParamStore::masters_from_values() {
  for (Bucket& b : buckets_) {
    if (b.has_master()) b.master.copy_(b.own);
    if (b.in_halves()) b.low.zero_();
  }
}

void ParamStore::values_from_masters() {
  std::vector<int64_t> all;
  for (Bucket& b : buckets_) {
    if (b.has_master()) b.own.copy_(b.master);
    b.stale = true;
    if (!b.dropped_between_uses) all.push_back(&b - buckets_.data());
  }
  gather(all);
  need(all);
}

void ParamStore::gather(const std::vector<int64_t>& buckets) {
  const at::NoGradGuard no_grad;
  // In an order that all ranks have, whatever parts of the parameters they hold.
  std::vector<std::string> meshes;
  for (const int64_t i : buckets) {
    const std::string& name = buckets_[static_cast<size_t>(i)].mesh.name;
    if (std::ranges::find(meshes, name) == meshes.end()) meshes.push_back(name);
  }
  for (const std::string& mesh : meshes) {
    std::vector<at::Tensor> values, own;
    std::vector<Bucket*> chosen;
    for (const int64_t i : buckets) {
      Bucket& b = buckets_[static_cast<size_t>(i)];
      if (b.unit < 0 || b.mesh.name != mesh) continue;
      const bool first = b.dropped_between_uses && b.uses++ == 0;
      if (!first && !(b.stale && !b.dropped_between_uses)) continue;
      b.stale = false;
      if (b.mesh.shard->size() == 1) continue;
      if (b.dropped_between_uses) restore_memory(b.value);
      chosen.push_back(&b);
      values.push_back(b.value.detach());
      own.push_back(b.own.detach());
    }
    if (chosen.empty()) continue;
    // Buckets of another type go apart: one call has one type.
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      std::vector<at::Tensor> to, from;
      for (size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i]->dtype != type) continue;
        to.push_back(values[i]);
        from.push_back(own[i]);
      }
      if (to.empty()) continue;
      const Pending pending = chosen[0]->mesh.shard->all_gather(to, from);
      for (Bucket* b : chosen) {
        if (b->dtype == type) b->gathering = pending;
      }
    }
  }
}

void ParamStore::need(const std::vector<int64_t>& buckets) {
  for (const int64_t i : buckets) buckets_[static_cast<size_t>(i)].gathering.wait();
}

void ParamStore::drop(const std::vector<int64_t>& buckets) {
  for (const int64_t i : buckets) {
    Bucket& b = buckets_[static_cast<size_t>(i)];
    if (!b.dropped_between_uses) continue;
    TROUPE_CHECK(b.uses > 0, "a bucket of unit", b.unit, "is dropped and was not gathered");
    if (--b.uses == 0) release_memory(b.value);
  }
}

bool ParamStore::reads_loaded(const Bucket& b) const {
  return b.mesh.replicate->rank() == 0;
}

void ParamStore::spread_loaded() {
  const at::NoGradGuard no_grad;
  for (Bucket& b : buckets_) {
    ProcessGroup& replicas = *b.mesh.replicate;
    const auto spread = [&](const at::Tensor& x) {
      if (replicas.size() == 1) return;
      const at::Tensor here = x.detach().to(b.own.device());  // copies state that is on the host
      replicas.broadcast(here, 0).wait();
      if (!here.is_alias_of(x)) x.copy_(here);
    };
    for (const at::Tensor& x : b.masters()) spread(x);
    for (const at::Tensor& x : b.state) spread(x);
    for (const at::Tensor& x : b.scales) spread(x);
    for (const int64_t s : b.members) {
      for (const at::Tensor& x : slots_[static_cast<size_t>(s)].state) spread(x);
    }
  }
}

int64_t ParamStore::slot_of(const Param* param) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.named.param == param; });
  return found == slots_.end() ? -1 : found - slots_.begin();
}

const Bucket& ParamStore::bucket_of(int64_t slot) const {
  return buckets_[static_cast<size_t>(slots_[static_cast<size_t>(slot)].bucket)];
}

OwnedRange ParamStore::owned(int64_t slot) const {
  return owned_range(slots_[static_cast<size_t>(slot)], bucket_of(slot));
}

std::vector<int64_t> ParamStore::owned_members(const Bucket& b) const {
  std::vector<int64_t> out;
  for (const int64_t slot : b.members) {
    if (owned_range(slots_[static_cast<size_t>(slot)], b).size > 0) out.push_back(slot);
  }
  return out;
}

at::Tensor ParamStore::part(int64_t slot, const at::Tensor& buffer) const {
  return owned_part(slots_[static_cast<size_t>(slot)], bucket_of(slot), buffer);
}

at::Tensor ParamStore::part_of_blocks(int64_t slot, const at::Tensor& scales) const {
  return owned_blocks_of(slots_[static_cast<size_t>(slot)], bucket_of(slot), scales);
}

}  // namespace troupe
