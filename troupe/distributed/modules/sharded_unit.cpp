#include "troupe/distributed/modules/sharded_unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"
#include "troupe/distributed/modules/module_values.h"
#include "troupe/distributed/modules/sharded_backwards.h"
#include "troupe/ops/support/give_back.h"

namespace troupe {
namespace {

constexpr int64_t kAlignBytes = 64;  // an allocation's: products have the bits of a module not cut

const torch::autograd::PostAccumulateGradHook* hook_after_gradient(const at::Tensor& parameter) {
  namespace impl = torch::autograd::impl;
  if (impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  return impl::post_acc_grad_hooks(parameter).get();
}

}  // namespace

// Belongs to a parameter of the module and so says which unit has it.
class ShardedUnit::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<ShardedUnit> the_unit, size_t parameter)
      : unit(std::move(the_unit)), parameter_(parameter) {}
  void operator()(const at::Tensor&) override {
    if (const auto u = unit.lock()) u->on_gradient(u->parameters[parameter_]);
  }
  const std::weak_ptr<ShardedUnit> unit;

 private:
  size_t parameter_;
};

std::shared_ptr<ShardedUnit> ShardedUnit::owner_of(const at::Tensor& parameter) {
  const auto* const ours = dynamic_cast<const Hook*>(hook_after_gradient(parameter));
  if (ours == nullptr) return nullptr;
  const std::shared_ptr<ShardedUnit> unit = ours->unit.lock();
  TROUPE_CHECK(unit != nullptr, "a parameter of sizes", parameter.sizes(),
               "belongs to a unit that is gone: keep what fully_shard returns");
  return unit;
}

// Each parameter of an inner unit belongs to a module within it, and that unit to this module.
void ShardedUnit::find_inner_units() {
  std::set<const torch::nn::Module*> within;
  for (const auto& m : module->modules()) within.insert(m.get());
  std::map<const ShardedUnit*, std::set<const torch::nn::Module*>> within_inner;
  for (const auto& m : module->named_modules()) {
    for (const auto& item : m.value()->named_parameters(/*recurse=*/false)) {
      const std::shared_ptr<ShardedUnit> unit = owner_of(item.value());
      if (unit == nullptr) continue;
      const std::string name = m.key().empty() ? item.key() : m.key() + '.' + item.key();
      TROUPE_CHECK(unit->group == group, "parameter", name, "is sharded over",
                   unit->group->description(), "and the module around it over",
                   group->description(), "- shard units in each other over one group");
      TROUPE_CHECK(unit->module != module && within.count(unit->module.get()) > 0, "parameter",
                   name, "is in a unit already: shard inner modules first, each once");
      auto& modules = within_inner[unit.get()];
      if (modules.empty()) {
        inner.push_back(unit);
        for (const auto& x : unit->module->modules()) modules.insert(x.get());
      }
      TROUPE_CHECK(modules.count(m.value().get()) > 0, "parameter", name,
                   "is also in a unit that has not this module: shard one that has both");
    }
  }
}

void ShardedUnit::make_rows() {
  std::map<at::ScalarType, std::vector<size_t>> of_type;
  for (auto& [name, whole] : parameters_of(*module)) {
    if (owner_of(whole) != nullptr) continue;
    TROUPE_CHECK(hook_after_gradient(whole) == nullptr, "parameter", name,
                 "has a hook after its gradient already, such as a replica's");
    of_type[whole.scalar_type()].push_back(parameters.size());
    parameters.push_back({.name = name, .whole = whole});
  }
  for (const auto& [type, members] : of_type) make_row(members);
  for (const Parameter& p : parameters) num_trained += p.whole.requires_grad() ? 1 : 0;
}

void ShardedUnit::make_row(const std::vector<size_t>& members) {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters[members.front()].whole;
  const int64_t align =
      std::max<int64_t>(1, kAlignBytes / static_cast<int64_t>(first.element_size()));
  const int64_t N = group->size();
  int64_t numel = 0;
  for (const size_t i : members) {
    parameters[i].row = rows.size();
    parameters[i].offset = numel;
    numel += round_up(parameters[i].whole.numel(), align);
  }
  numel = std::max(N * align, round_up(numel, N * align));
  const int64_t n = numel / N, from = group->rank() * n;
  Row row{.whole =
              at::zeros({numel}, at::TensorOptions(first.scalar_type()).device(first.device()))};
  const auto place = [&](const Parameter& p) {
    return row.whole.narrow(0, p.offset, p.whole.numel()).view(p.whole.sizes());
  };
  for (const size_t i : members) place(parameters[i]).copy_(parameters[i].whole);
  group->broadcast(row.whole, 0).wait();
  row.range = row.whole.narrow(0, from, n).clone();
  for (const size_t i : members) {
    Parameter& p = parameters[i];
    p.whole.set_data(place(p));
    p.part_offset = std::clamp<int64_t>(p.offset - from, 0, n);
    const int64_t end = std::clamp<int64_t>(p.offset + p.whole.numel() - from, 0, n);
    p.part = row.range.narrow(0, p.part_offset, end - p.part_offset).detach();
    p.part.set_requires_grad(p.whole.requires_grad());
    row.trains = row.trains || p.whole.requires_grad();
  }
  release_memory(row.whole);
  rows.push_back(std::move(row));
}

void ShardedUnit::attach() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].whole,
                                                   std::make_unique<Hook>(weak_from_this(), i));
  }
}

uint32_t ShardedUnit::version() const {
  uint32_t sum = 0;
  for (const Row& row : rows) sum += static_cast<uint32_t>(row.range._version());
  return sum;
}

// What is kept for a backward is gathered anew for a forward: an optimizer may have written past
// the count of writes.
void ShardedUnit::gather() {
  if (is_whole && (calls > 0 || in_backward) && is_current()) return;
  fetch();
}

void ShardedUnit::fetch() {
  const at::NoGradGuard no_grad;
  std::vector<Pending> pending;
  for (const Row& row : rows) {
    restore_memory(row.whole);
    pending.push_back(group->all_gather({row.whole}, {row.range}));
  }
  for (Pending& p : pending) p.wait();
  is_whole = true;
  whole_version = version();
}

// Values that rank 0 wrote into the whole rows, cut over the ranks.
void ShardedUnit::scatter() {
  const at::NoGradGuard no_grad;
  for (const Row& row : rows) {
    group->broadcast(row.whole, 0).wait();
    const int64_t n = row.range.numel();
    row.range.copy_(row.whole.narrow(0, group->rank() * n, n));
  }
  whole_version = version();
}

void ShardedUnit::release() {
  if (calls > 0 || needs_values || waits_for_backward) return;
  for (const Row& row : rows) release_memory(row.whole);
  is_whole = false;
}

// The backward of a call begins at a tensor that it returned.
void ShardedUnit::watch(const at::Tensor& y, const std::shared_ptr<ShardedCall>& call) {
  if (rows.empty() || !y.defined()) return;
  for (const Row& row : rows) {
    TROUPE_CHECK(!y.has_storage() || !y.storage().is_alias_of(row.whole.storage()), "a result of",
                 module->name(), "with sizes", y.sizes(),
                 "shares memory with a parameter, which is freed now: return a copy");
  }
  // A leaf is an argument that was passed through: its gradient does not come through this call.
  if (!y.requires_grad() || y.is_leaf() || !at::GradMode::is_enabled()) return;
  if (!options.reshard_after_forward) waits_for_backward = true;
  call->results.emplace_back(y.grad_fn());
  y.register_hook([self = shared_from_this(), call](const at::Tensor&) {
    self->group->sharded_backwards()->come_to(call);
  });
}

void ShardedUnit::begin_backward(int the_task, bool fetches) {
  const c10::OptionalStreamGuard on(stream);
  task = the_task;
  arrived = 0;
  in_backward = needs_values = true;
  for (Row& row : rows) row.grad.reset();
  for (Parameter& p : parameters) {
    p.used = false;
    p.whole.mutable_grad().reset();
  }
  if (fetches) fetch();
}

void ShardedUnit::on_gradient(const Parameter& p) {
  TROUPE_CHECK(task == torch::autograd::get_current_graph_task_id(), "the gradient of", p.name,
               "does not come from what a call of", module->name(), "returned");
  ++arrived;
}

void ShardedUnit::reduce() {
  const at::NoGradGuard no_grad;
  const c10::OptionalStreamGuard on(stream);
  const at::Tensor N = at::scalar_tensor(group->size(), at::kDouble);
  bool all_train = true;
  std::vector<at::Tensor> whole;
  for (const Row& row : rows) {
    whole.push_back(row.trains ? at::zeros({row.range.numel() * group->size()}, row.range.options())
                               : at::Tensor());
  }
  for (Parameter& p : parameters) {
    all_train = all_train && p.whole.requires_grad();
    at::Tensor& grad = p.whole.mutable_grad();
    if (!grad.defined()) continue;
    require_dense_gradient(grad, p.name);
    at::Tensor share = whole[p.row].narrow(0, p.offset, grad.numel()).view(grad.sizes());
    at::div_out(share, grad, N);  // before the sum, which could overflow
    p.used = true;
    grad.reset();
  }
  in_backward = waits_for_backward = false;
  // All that needed the values has them behind it once all have a gradient; what does not train
  // may be needed for the gradient of the unit's input.
  needs_values = needs_values && !(all_train && arrived == num_trained);
  release();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].trains) continue;
    const at::Tensor mean = at::empty_like(rows[i].range);
    group->reduce_scatter({mean}, {whole[i]}).wait();
    rows[i].grad = rows[i].grad.defined() ? rows[i].grad.add_(mean) : mean;
  }
}

std::vector<bool> ShardedUnit::gradients_here() const {
  std::vector<bool> out;
  bool late = false;
  for (const Parameter& p : parameters) {
    const bool came = p.whole.grad().defined();
    out.push_back(p.used || came);
    late = late || came;
  }
  out.push_back(late);
  return out;
}

void ShardedUnit::end_backward(const std::vector<bool>& on_any_rank) {
  const at::NoGradGuard no_grad;
  if (on_any_rank.back()) reduce();
  {
    const c10::OptionalStreamGuard on(stream);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!on_any_rank[i]) continue;
      const Parameter& p = parameters[i];
      const at::Tensor mean = rows[p.row].grad.narrow(0, p.part_offset, p.part.numel());
      at::Tensor& grad = p.part.mutable_grad();
      if (grad.defined()) {
        grad.add_(mean);
      } else {
        grad = mean.clone();  // no view: Optimizer::zero_grad() detaches it in place
      }
    }
  }
  leave_backward(task);
  if (!stream) return;
  // The caller of backward() reads gradients on a stream of its own.
  c10::Event done(stream->device_type());
  done.record(*stream);
  done.block(c10::impl::VirtualGuardImpl(stream->device_type()).getStream(stream->device()));
}

void ShardedUnit::leave_backward(int the_task) {
  if (task != the_task) return;
  task = -1;
  in_backward = needs_values = waits_for_backward = false;
  for (Row& row : rows) row.grad.reset();
  release();
}

bool ShardedUnit::owns(const at::Tensor& whole) const {
  return std::ranges::any_of(parameters,
                             [&](const Parameter& p) { return p.whole.is_same(whole); });
}

const ShardedUnit::Parameter& ShardedUnit::find(const at::Tensor& whole) const {
  for (const Parameter& p : parameters) {
    if (p.whole.is_same(whole)) return p;
  }
  for (const auto& unit : inner) {
    if (unit->owns(whole)) return unit->find(whole);
  }
  fail(Code::kBrokenContract, module->name(), "a parameter of sizes", whole.sizes(),
       "is not the one that was sharded: register all before fully_shard");
}

}  // namespace troupe
