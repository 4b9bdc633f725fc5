#include "troupe/train/params/param_store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/ops/accumulate.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr int64_t kAlign = kMomentBlock;

int64_t bad_count(const at::Tensor& x) {
  return x.numel() - at::isfinite(x).sum().item<int64_t>();
}

int64_t rounded(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// A tensor's memory given back, and had again, under the same tensor and all its views: also those
// that autograd keeps.
void give_back_memory(const at::Tensor& x) {
  c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, x.device()));
  storage->set_nbytes(0);
}

void have_memory(const at::Tensor& x) {
  c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
  if (storage->nbytes() > 0) return;
  const size_t bytes = static_cast<size_t>(x.numel()) * x.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

// f32 by our own kernel, which is faster than PyTorch's copy and addition.
void put(const at::Tensor& to, const at::Tensor& grad) {
  if (to.scalar_type() == at::kFloat) {
    accumulate_(to, grad, /*add=*/false);
  } else {
    to.copy_(grad);
  }
}

void add_to(const at::Tensor& sum, const at::Tensor& grad) {
  if (sum.scalar_type() == at::kFloat) {
    accumulate_(sum, grad, /*add=*/true);
  } else {
    sum.add_(grad);
  }
}

// Whether others may be added to a gradient where it is: nobody else holds its memory.
bool may_grow(const at::Tensor& grad) {
  return grad.scalar_type() == wide_type(grad) && grad.storage().use_count() == 1;
}

}  // namespace

at::Tensor joined(const at::Tensor& value, const at::Tensor& low) {
  const at::Tensor upper = value.view(at::kShort).to(at::kInt), rest = low.to(at::kInt);
  upper.add_(rest.bitwise_right_shift(31)).bitwise_left_shift_(16);  // less 1 where low >= 2^15
  return upper.bitwise_or_(rest.bitwise_and_(0xffff)).view(at::kFloat);
}

void split(const at::Tensor& master, const at::Tensor& value, const at::Tensor& low) {
  const at::Tensor bits = master.view(at::kInt), is_nan = at::isnan(master);
  low.copy_(bits.bitwise_and(0xffff).masked_fill_(is_nan, 0));
  const at::Tensor rounded = (bits + 0x8000).bitwise_right_shift_(16);
  const at::Tensor of_nan = bits.bitwise_right_shift(16).bitwise_or_(0x40);
  value.view(at::kShort).copy_(at::where(is_nan, of_nan, rounded));
}

ParamStore::ParamStore(std::vector<NamedParam> params, const at::TensorOptions& options,
                       const std::function<BucketKey(const NamedParam&)>& key_of, Sharing sharing)
    : sharing_(std::move(sharing)), options_(options) {
  const bool f64 = options.dtype().toScalarType() == at::kDouble;
  if (f64 && sharing_.sum_type == at::kFloat) sharing_.sum_type = at::kDouble;
  for (NamedParam& named : params) {
    Param& p = *named.param;
    if (!p.trainable()) {
      p.allocate(options);
      others_.push_back(std::move(named));
      continue;
    }
    const Bucket wanted{.key = key_of(named),
                        .dtype = p.fp32 ? at::kFloat : options.dtype().toScalarType(),
                        .unit = sharing_.alone ? -1 : named.unit,
                        .sharers = sharers_of(named)};
    auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) {
      return b.key == wanted.key && b.dtype == wanted.dtype && b.unit == wanted.unit &&
             b.sharers.holders == wanted.sharers.holders;
    });
    if (bucket == buckets_.end()) bucket = buckets_.insert(bucket, wanted);
    bucket->members.push_back(static_cast<int64_t>(slots_.size()));
    slots_.push_back({std::move(named), bucket - buckets_.begin(), bucket->size});
    bucket->size += rounded(p.numel(), kAlign);
  }
  for (Bucket& b : buckets_) make_buffers(b, options);
  grads_.resize(slots_.size());
  is_sum_.resize(slots_.size());
}

void ParamStore::make_buffers(Bucket& b, const at::TensorOptions& options) {
  const ProcessGroup& owners = *b.sharers.owners;
  b.summed = owners.size() > 1 || b.sharers.replicas->size() > 1;
  b.size = rounded(b.size, owners.size() * kAlign);
  b.own_size = b.size / owners.size();
  b.own_from = owners.rank() * b.own_size;
  b.dropped_between_uses = sharing_.full && owners.size() > 1;
  b.value = at::zeros({b.size}, options.dtype(b.dtype));
  const at::Tensor part_of_value = b.value.narrow(0, b.own_from, b.own_size);
  b.own = b.dropped_between_uses ? at::empty_like(part_of_value) : part_of_value;
  if (b.in_halves()) {
    b.low = at::zeros({b.own_size}, options.dtype(at::kShort));
  } else {
    b.master = b.has_master() ? at::zeros({b.own_size}, options.dtype(at::kFloat)) : b.own;
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
  if (b.dropped_between_uses) give_back_memory(b.value);
}

Owners ParamStore::sharers_of(const NamedParam& named) const {
  return sharing_.alone ? Owners() : sharing_.owners(named);
}

void ParamStore::initialise_all(uint64_t seed) {
  for (Bucket& b : buckets_) {
    const at::NoGradGuard no_grad;
    if (b.dropped_between_uses) {
      have_memory(b.value);
      b.value.zero_();
    }
    for (const int64_t s : b.members) {
      const NamedParam& named = slots_[static_cast<size_t>(s)].named;
      initialise(*named.param, named.name, seed);
    }
    if (!b.dropped_between_uses) continue;
    b.own.copy_(b.value.narrow(0, b.own_from, b.own_size));
    give_back_memory(b.value);
  }
  for (const NamedParam& other : others_) initialise(*other.param, other.name, seed);
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

void ParamStore::begin_step() {
  grads_.assign(slots_.size(), {});
  is_sum_.assign(slots_.size(), 0);
  for (Bucket& b : buckets_) b.grad.reset();
}

void ParamStore::add(int64_t slot, const at::Tensor& grad) {
  if (!grad.defined()) return;
  const auto s = static_cast<size_t>(slot);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = grad.detach().reshape({-1});
  if (!grads_[s].defined()) {
    grads_[s] = flat;
    return;
  }
  if (is_sum_[s] == 0 && !may_grow(grads_[s])) {
    const at::Tensor first = grads_[s];
    grads_[s] = at::empty({flat.numel()}, flat.options().dtype(wide_type(flat)));
    put(grads_[s], first);
  }
  add_to(grads_[s], flat);
  is_sum_[s] = 1;
}

void ParamStore::end_step() {
  finish_all();
  for (ReplicaSum& sum : replica_sums_) {
    sum.pending.wait();
    Bucket& b = buckets_[static_cast<size_t>(sum.bucket)];
    b.grad = sum.sent.to(wide_type(b.own));
  }
  replica_sums_.clear();
  for (Bucket& b : buckets_) {
    if (b.summed) {
      if (!b.grad.defined()) b.grad = at::zeros_like(b.own, at::TensorOptions(wide_type(b.own)));
      for (const int64_t s : b.members) grads_[static_cast<size_t>(s)] = part(s, b.grad);
      continue;
    }
    for (const int64_t m : b.members) {
      const auto s = static_cast<size_t>(m);
      if (grads_[s].defined()) continue;
      const at::Tensor& value = slots_[s].named.param->value;
      grads_[s] = at::zeros({value.numel()}, value.options().dtype(wide_type(value)));
    }
  }
}

const at::Tensor& ParamStore::grad(int64_t slot) const {
  return grads_[static_cast<size_t>(slot)];
}

std::vector<at::Tensor> ParamStore::counted_grads() const {
  if (sharing_.alone) return grads_;
  std::vector<at::Tensor> out;
  for (const Bucket& b : buckets_) {
    if (b.summed) {
      if (b.sharers.replicas->rank() == 0) out.push_back(b.grad);
      continue;
    }
    for (const int64_t s : b.members) out.push_back(grads_[static_cast<size_t>(s)]);
  }
  return out;
}

void ParamStore::gather(const std::vector<int64_t>& buckets) {
  const at::NoGradGuard no_grad;
  // In an order that all ranks have, whatever parts of the parameters they hold.
  std::vector<std::string> classes;
  for (const int64_t i : buckets) {
    const std::string& holders = buckets_[static_cast<size_t>(i)].sharers.holders;
    if (std::ranges::find(classes, holders) == classes.end()) classes.push_back(holders);
  }
  for (const std::string& holders : classes) {
    std::vector<at::Tensor> values, own;
    std::vector<Bucket*> chosen;
    for (const int64_t i : buckets) {
      Bucket& b = buckets_[static_cast<size_t>(i)];
      if (b.unit < 0 || b.sharers.holders != holders) continue;
      const bool first = b.dropped_between_uses && b.uses++ == 0;
      if (!first && !(b.stale && !b.dropped_between_uses)) continue;
      b.stale = false;
      if (b.sharers.owners->size() == 1) continue;
      if (b.dropped_between_uses) have_memory(b.value);
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
      const Pending pending = chosen[0]->sharers.owners->all_gather(to, from);
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
    if (--b.uses == 0) give_back_memory(b.value);
  }
}

at::Tensor ParamStore::take_grads(const Bucket& b) {
  const at::Tensor whole = at::empty({b.size}, b.own.options().dtype(sharing_.sum_type));
  int64_t end = 0;  // of what is written
  const auto zeros_until = [&](int64_t begin) {
    if (begin > end) whole.narrow(0, end, begin - end).zero_();
  };
  for (const int64_t m : b.members) {
    at::Tensor& grad = grads_[static_cast<size_t>(m)];
    is_sum_[static_cast<size_t>(m)] = 0;
    if (!grad.defined()) continue;
    const int64_t begin = slots_[static_cast<size_t>(m)].offset, n = grad.numel();
    zeros_until(begin);
    put(whole.narrow(0, begin, n), grad);
    end = begin + n;
    grad.reset();
  }
  zeros_until(b.size);
  return whole;
}

void ParamStore::reduce(const std::vector<int64_t>& buckets, bool last) {
  const at::NoGradGuard no_grad;
  finish_all();  // so that the buffers of one unit are there at a time
  for (const int64_t i : buckets) {
    Bucket& b = buckets_[static_cast<size_t>(i)];
    if (!b.summed) continue;
    Reduction r{.bucket = i, .last = last, .whole = take_grads(b)};
    const Owners& ranks = b.sharers;
    if (ranks.owners->size() > 1) {
      r.own = at::empty({b.own_size}, r.whole.options());
      r.pending = ranks.owners->reduce_scatter({r.own}, {r.whole});
    } else {
      r.own = r.whole;
      if (last) {  // nothing to wait for: to the replicas at once
        if (b.grad.defined()) r.own.add_(std::exchange(b.grad, at::Tensor()));
        r.pending = ranks.replicas->all_reduce({r.own});
        r.all_summed = true;
      }
    }
    reductions_.push_back(std::move(r));
  }
}

void ParamStore::finish(Reduction& r) {
  const at::NoGradGuard no_grad;
  Bucket& b = buckets_[static_cast<size_t>(r.bucket)];
  r.pending.wait();
  const at::Tensor own = r.own.to(wide_type(b.own));
  if (b.grad.defined()) {
    b.grad.add_(own);
  } else {
    b.grad = own;
  }
  if (!r.last || r.all_summed) return;
  ProcessGroup& replicas = *b.sharers.replicas;
  if (replicas.size() == 1) return;
  const at::Tensor sent = b.grad.to(sharing_.sum_type);
  replica_sums_.push_back({r.bucket, sent, replicas.all_reduce({sent})});
}

void ParamStore::finish_all() {
  for (Reduction& r : reductions_) finish(r);
  reductions_.clear();
}

bool ParamStore::reads_loaded(const Bucket& b) const {
  return b.sharers.replicas->rank() == 0;
}

void ParamStore::spread_loaded() {
  const at::NoGradGuard no_grad;
  for (Bucket& b : buckets_) {
    ProcessGroup& replicas = *b.sharers.replicas;
    for (const at::Tensor& x : b.masters()) replicas.broadcast(x.detach(), 0).wait();
    for (const at::Tensor& x : b.state) replicas.broadcast(x, 0).wait();
    for (const at::Tensor& x : b.scales) replicas.broadcast(x, 0).wait();
    for (const int64_t s : b.members) {
      for (const at::Tensor& x : slots_[static_cast<size_t>(s)].state) {
        replicas.broadcast(x, 0).wait();
      }
    }
  }
}

int64_t ParamStore::slot_of(const Param* param) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.named.param == param; });
  return found == slots_.end() ? -1 : found - slots_.begin();
}

ParamStore::Range ParamStore::owned(int64_t slot) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  const Bucket& b = buckets_[static_cast<size_t>(s.bucket)];
  const int64_t from = std::max(s.offset, b.own_from);
  const int64_t to = std::min(s.offset + s.named.param->numel(), b.own_from + b.own_size);
  return to <= from ? Range{} : Range{from - s.offset, to - from};
}

std::vector<int64_t> ParamStore::owned_members(const Bucket& b) const {
  std::vector<int64_t> out;
  for (const int64_t slot : b.members) {
    if (owned(slot).size > 0) out.push_back(slot);
  }
  return out;
}

at::Tensor ParamStore::part(int64_t slot, const at::Tensor& buffer) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  const Range range = owned(slot);
  const int64_t from =
      range.size == 0 ? 0
                      : s.offset + range.from - buckets_[static_cast<size_t>(s.bucket)].own_from;
  // Past the dispatcher: an update asks for hundreds.
  return at::native::as_strided_tensorimpl(buffer, {range.size}, {1},
                                           buffer.storage_offset() + from);
}

at::Tensor ParamStore::part_of_blocks(int64_t slot, const at::Tensor& scales) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  const Range range = owned(slot);
  if (range.size == 0) return scales.narrow(0, 0, 0);
  const int64_t from = s.offset + range.from - buckets_[static_cast<size_t>(s.bucket)].own_from;
  return scales.narrow(0, from / kMomentBlock, moment_blocks(range.size));
}

namespace {

// Appends the values that are not finite; `values` are those of `range`.
void add_bad(std::vector<BadValue>& out, const NamedParam& named, const at::Tensor& values,
             const ParamStore::Range& range) {
  const auto& [name, param, unit] = named;
  if (values.numel() == 0 || bad_count(values) == 0) return;
  if (!param->per_expert) {
    out.push_back({name, bad_count(values), values.numel()});
    return;
  }
  const int64_t each = param->numel() / static_cast<int64_t>(param->experts.size());
  for (int64_t at = range.from; at < range.from + range.size;) {
    const int64_t end = std::min((at / each + 1) * each, range.from + range.size);
    const int64_t bad = bad_count(values.narrow(0, at - range.from, end - at));
    const int64_t expert = param->experts[static_cast<size_t>(at / each)];
    if (bad > 0) out.push_back({expert_name(name, expert), bad, end - at});
    at = end;
  }
}

std::vector<BadValue> bad_in(const ParamStore& store,
                             const std::function<at::Tensor(int64_t slot)>& values_of) {
  std::vector<BadValue> out;
  for (int64_t s = 0; s < static_cast<int64_t>(store.slots().size()); ++s) {
    add_bad(out, store.slots()[static_cast<size_t>(s)].named, values_of(s), store.owned(s));
  }
  return out;
}

}  // namespace

std::vector<BadValue> bad_values_of(const NamedParam& named, const at::Tensor& values) {
  std::vector<BadValue> out;
  add_bad(out, named, values.reshape(-1), {.from = 0, .size = values.numel()});
  return out;
}

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
