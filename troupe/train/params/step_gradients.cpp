#include "troupe/train/params/step_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/accumulate.h"
#include "troupe/ops/support/view.h"
#include "troupe/train/params/exact_gradients.h"

namespace troupe {
namespace {

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

StepGradients::StepGradients(std::vector<Bucket>& buckets, const std::vector<ParamSlot>& slots,
                             at::ScalarType sum_type, bool alone, bool exact)
    : buckets_(buckets),
      slots_(slots),
      sum_type_(exact ? at::kLong : sum_type),
      alone_(alone),
      exact_(exact) {}

int64_t StepGradients::room_for(int64_t n) const {
  return exact_ ? pair_elements(n) : n;
}

at::ScalarType StepGradients::type_of_sums(const Bucket& b) const {
  return exact_ ? at::kLong : wide_type(b.own);
}

bool StepGradients::all_fit() const {
  return std::ranges::all_of(fits_, [](char fits) { return fits != 0; });
}

void StepGradients::begin_step() {
  grads_.assign(slots_.size(), {});
  is_sum_.assign(slots_.size(), 0);
  fits_.assign(slots_.size(), 1);
  states_.clear();
  for (Bucket& b : buckets_) {
    b.grad.reset();
    states_.push_back(b.summed ? State::kLocal : State::kWhole);
  }
  closed_.assign(buckets_.size(), 0);
  released_.assign(buckets_.size(), 0);
}

void StepGradients::add(int64_t slot, const at::Tensor& grad) {
  if (!grad.defined()) return;
  const auto s = static_cast<size_t>(slot);
  TROUPE_CHECK(closed_[static_cast<size_t>(slots_[s].bucket)] == 0, "the gradient of",
               name_of(slot), "comes after the last reduction of the step, which would lose it");
  const at::NoGradGuard no_grad;
  const at::Tensor flat = grad.detach().reshape({-1});
  if (exact_) return add_exactly(s, flat);
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

void StepGradients::add_exactly(size_t s, const at::Tensor& flat) {
  if (!grads_[s].defined()) {
    grads_[s] = at::zeros({pair_elements(flat.numel())}, flat.options().dtype(at::kLong));
  }
  if (!add_to_pairs(grads_[s], flat)) fits_[s] = 0;
}

// A gradient that does not fit is NaN where this rank alone has it; of others StepUpdate hears by
// all_fit().
void StepGradients::finish_exactly(Bucket& b) {
  if (b.summed) {
    if (b.grad.defined()) b.grad = values_of_pairs(b.grad);
    return;
  }
  for (const int64_t m : b.members) {
    const auto s = static_cast<size_t>(m);
    if (!grads_[s].defined()) continue;
    grads_[s] = values_of_pairs(grads_[s]);
    if (fits_[s] == 0) grads_[s].fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void StepGradients::end_step() {
  std::vector<int64_t> left;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (released_[i] == 0) left.push_back(static_cast<int64_t>(i));
  }
  settle(left);
}

void StepGradients::settle(const std::vector<int64_t>& buckets) {
  const auto is_asked = [&](const auto& sum) {
    return std::ranges::find(buckets, sum.bucket) != buckets.end();
  };
  for (Reduction& r : reductions_) {
    if (is_asked(r)) finish(r);
  }
  std::erase_if(reductions_, is_asked);
  for (ReplicaSum& sum : replica_sums_) {
    if (!is_asked(sum)) continue;
    sum.pending.wait();
    Bucket& b = bucket(sum.bucket);
    b.grad = sum.sent.to(type_of_sums(b));
    states_[static_cast<size_t>(sum.bucket)] = State::kWhole;
  }
  std::erase_if(replica_sums_, is_asked);
  for (const int64_t i : buckets) complete(static_cast<size_t>(i));
}

void StepGradients::complete(size_t i) {
  Bucket& b = buckets_[i];
  if (exact_) finish_exactly(b);
  if (b.summed) {
    check_whole(b, states_[i]);
    if (!b.grad.defined()) b.grad = at::zeros_like(b.own, at::TensorOptions(wide_type(b.own)));
    for (const int64_t s : b.members) {
      grads_[static_cast<size_t>(s)] = owned_part(slots_[static_cast<size_t>(s)], b, b.grad);
    }
    return;
  }
  for (const int64_t m : b.members) {
    const auto s = static_cast<size_t>(m);
    if (grads_[s].defined()) continue;
    const at::Tensor& value = slots_[s].named.param->value;
    grads_[s] = at::zeros({value.numel()}, value.options().dtype(wide_type(value)));
  }
}

void StepGradients::release(const std::vector<int64_t>& buckets) {
  for (const int64_t i : buckets) {
    Bucket& b = bucket(i);
    b.grad.reset();
    for (const int64_t s : b.members) grads_[static_cast<size_t>(s)].reset();
    closed_[static_cast<size_t>(i)] = released_[static_cast<size_t>(i)] = 1;
  }
}

void StepGradients::hold(const std::vector<at::Tensor>& gradients) {
  TROUPE_CHECK(alone_ && !exact_ && gradients.size() == slots_.size(), gradients.size(),
               "gradients of", slots_.size(), "parameters, of one rank alone:", alone_);
  begin_step();
  grads_ = gradients;
}

void StepGradients::check_whole(const Bucket& b, State state) const {
  for (const int64_t m : b.members) {
    TROUPE_CHECK(!grads_[static_cast<size_t>(m)].defined(), "the gradient of", name_of(m),
                 "is the sum of this rank's microbatches alone: no reduction took it");
  }
  TROUPE_CHECK(
      state == State::kWhole || b.members.empty(), "the gradient of", name_of(b.members.front()),
      state == State::kLocal ? "was never reduced" : "is a share: its last reduction is missing");
}

const std::string& StepGradients::name_of(int64_t slot) const {
  return slots_[static_cast<size_t>(slot)].named.name;
}

const at::Tensor& StepGradients::of(int64_t slot) const {
  const auto s = static_cast<size_t>(slot);
  TROUPE_CHECK(states_[static_cast<size_t>(slots_[s].bucket)] == State::kWhole, "the gradient of",
               name_of(slot), "is read before it is whole");
  return grads_[s];
}

std::vector<at::Tensor> StepGradients::counted() const {
  if (alone_) return grads_;
  std::vector<at::Tensor> out;
  for (const Bucket& b : buckets_) {
    if (b.summed) {
      if (b.mesh.replicate->rank() == 0) out.push_back(b.grad);
      continue;
    }
    for (const int64_t s : b.members) out.push_back(grads_[static_cast<size_t>(s)]);
  }
  return out;
}

std::map<StepGradients::Place, at::Tensor> StepGradients::counted_of(
    const std::vector<int64_t>& buckets) const {
  std::map<Place, at::Tensor> out;
  for (const int64_t i : buckets) {
    const Bucket& b = buckets_[static_cast<size_t>(i)];
    if (b.summed) {
      if (b.mesh.replicate->rank() == 0) out[{i, -1}] = b.grad;
      continue;
    }
    for (const int64_t s : b.members) out[{alone_ ? 0 : i, s}] = grads_[static_cast<size_t>(s)];
  }
  return out;
}

at::Tensor StepGradients::take(const Bucket& b) {
  const at::Tensor whole = at::empty({room_for(b.size)}, b.own.options().dtype(sum_type_));
  int64_t end = 0;  // elements before it are written
  const auto zeros_until = [&](int64_t begin) {
    if (begin > end) whole.narrow(0, end, begin - end).zero_();
  };
  for (const int64_t m : b.members) {
    at::Tensor& grad = grads_[static_cast<size_t>(m)];
    is_sum_[static_cast<size_t>(m)] = 0;
    if (!grad.defined()) continue;
    const int64_t begin = room_for(slots_[static_cast<size_t>(m)].offset), n = grad.numel();
    zeros_until(begin);
    put(whole.narrow(0, begin, n), grad);
    end = begin + n;
    grad.reset();
  }
  zeros_until(whole.numel());
  return whole;
}

void StepGradients::reduce(const std::vector<int64_t>& buckets, bool last) {
  const at::NoGradGuard no_grad;
  finish_all();  // so that the buffers of one unit are there at a time
  for (const int64_t i : buckets) {
    Bucket& b = bucket(i);
    if (!b.summed) continue;
    TROUPE_CHECK(closed_[static_cast<size_t>(i)] == 0 || b.members.empty(), "the gradient of",
                 name_of(b.members.front()),
                 "is reduced again after the last reduction of the step");
    closed_[static_cast<size_t>(i)] = static_cast<char>(last);
    Reduction r{.bucket = i, .last = last, .whole = take(b)};
    const ShardMesh& mesh = b.mesh;
    if (mesh.shard->size() > 1) {
      r.own = at::empty({room_for(b.own_size)}, r.whole.options());
      r.pending = mesh.shard->reduce_scatter({r.own}, {r.whole});
    } else {
      r.own = r.whole;
      if (last) {  // nothing to wait for: to the replicas at once
        if (b.grad.defined()) r.own.add_(std::exchange(b.grad, at::Tensor()));
        r.pending = mesh.replicate->all_reduce({r.own});
        r.all_summed = true;
      }
    }
    reductions_.push_back(std::move(r));
  }
}

void StepGradients::finish(Reduction& r) {
  const at::NoGradGuard no_grad;
  Bucket& b = bucket(r.bucket);
  r.pending.wait();
  const at::Tensor own = r.own.to(type_of_sums(b));
  if (b.grad.defined()) {
    b.grad.add_(own);
  } else {
    b.grad = own;
  }
  ProcessGroup& replicas = *b.mesh.replicate;
  const bool whole = r.last && (r.all_summed || replicas.size() == 1);
  states_[static_cast<size_t>(r.bucket)] = whole ? State::kWhole : State::kShare;
  if (!r.last || whole) return;
  const at::Tensor sent = b.grad.to(sum_type_);
  replica_sums_.push_back({r.bucket, sent, replicas.all_reduce({sent})});
}

void StepGradients::finish_all() {
  for (Reduction& r : reductions_) finish(r);
  reductions_.clear();
}

}  // namespace troupe
