#include "troupe/distributed/modules/fully_shard.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/distributed/modules/module_values.h"
#include "troupe/distributed/modules/sharded_backwards.h"
#include "troupe/distributed/modules/sharded_unit.h"

namespace troupe {

ShardedModule::ShardedModule(const std::shared_ptr<torch::nn::Module>& module,
                             std::shared_ptr<ProcessGroup> group, const ShardOptions& options)
    : unit_(std::make_shared<ShardedUnit>(module, std::move(group), options)) {
  TROUPE_CHECK(module != nullptr, "no module to shard");
  unit_->find_inner_units();
  if (unit_->group->size() == 1) return;
  require_same_module(*module, *unit_->group);
  unit_->make_rows();
  unit_->attach();
  auto& backwards = unit_->group->sharded_backwards();
  if (!backwards) backwards = std::make_shared<ShardedBackwards>(*unit_->group);
  unit_->number = backwards->add_unit();
  broadcast_values(module->buffers(), *unit_->group);
}

std::vector<std::pair<std::string, at::Tensor>> ShardedModule::named_parameters() const {
  auto out = parameters_of(*unit_->module);
  if (unit_->group->size() == 1) return out;
  for (auto& [name, x] : out) x = unit_->find(x).part;
  return out;
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> out;
  for (auto& [name, part] : named_parameters()) out.push_back(part);
  return out;
}

double ShardedModule::clip_grad_norm(double max_norm) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parts = parameters();
  if (parts.empty()) return 0;
  at::Tensor sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(parts.front().device()));
  for (const at::Tensor& part : parts) {
    if (part.grad().defined()) sum.add_(part.grad().to(at::kDouble).square().sum());
  }
  unit_->group->all_reduce({sum}).wait();
  const double norm = std::sqrt(sum.item<double>());
  const double scale = std::min(1.0, max_norm / (norm + 1e-6));
  for (const at::Tensor& part : parts) {
    if (part.grad().defined()) part.mutable_grad().mul_(scale);
  }
  return norm;
}

namespace {

// Why values of `module` cannot be copied to or from `whole`; empty: they can.
std::string mismatch_of(const torch::nn::Module& module, const torch::nn::Module* whole) {
  if (whole == nullptr) return "rank 0 of the group gave no module";
  std::string out;
  const auto compare = [&](const auto& ours, const auto& theirs) {
    for (const auto& item : ours) {
      const at::Tensor* const x = theirs.find(item.key());
      if (x == nullptr) {
        out += item.key() + " is not in the whole module; ";
      } else if (x->sizes() != item.value().sizes()) {
        std::ostringstream sizes;
        sizes << item.key() << " has sizes " << x->sizes() << " in the whole module and "
              << item.value().sizes() << " here; ";
        out += sizes.str();
      }
    }
    if (ours.size() < theirs.size()) out += "the whole module has more tensors; ";
  };
  compare(module.named_parameters(), whole->named_parameters());
  compare(module.named_buffers(), whole->named_buffers());
  return out;
}

}  // namespace

void ShardedModule::copy_to(torch::nn::Module* whole) const {
  copy(whole, Direction::kTo);
}

void ShardedModule::copy_from(torch::nn::Module* whole) const {
  copy(whole, Direction::kFrom);
}

void ShardedModule::copy(torch::nn::Module* whole, Direction direction) const {
  const at::NoGradGuard no_grad;
  ProcessGroup& group = *unit_->group;
  const bool first = group.rank() == 0;
  const std::string why = first ? mismatch_of(*unit_->module, whole) : "";
  const auto named = unit_->module->named_parameters();
  const c10::Device device = device_of_module(*unit_->module);
  if (set_on_any_rank({!why.empty()}, device, group).front()) {
    fail(Code::kStateMismatch, "copy of a sharded module",
         why.empty() ? "rank 0 has another module; its message has the names" : why);
  }
  const auto move = [&](const auto& ours, const auto& theirs, const auto& is_due) {
    for (const auto& item : ours) {
      if (!is_due(item.value())) continue;
      const at::Tensor &x = item.value(), &y = *theirs.find(item.key());
      if (direction == Direction::kTo) {
        y.copy_(x);
      } else {
        x.copy_(y);
      }
    }
  };
  std::vector<std::shared_ptr<ShardedUnit>> units = unit_->inner;
  units.push_back(unit_);
  for (const auto& unit : units) {
    // Only what this unit has; in a group of one, where no unit has any, all.
    const auto is_due = [&](const at::Tensor& x) {
      return group.size() == 1 ? unit == unit_ : unit->owns(x);
    };
    unit->gather();
    if (first) move(named, whole->named_parameters(), is_due);
    if (direction == Direction::kFrom) unit->scatter();
    unit->release();
  }
  const auto all = [](const at::Tensor&) { return true; };
  if (first) move(unit_->module->named_buffers(), whole->named_buffers(), all);
  if (direction == Direction::kFrom) broadcast_values(unit_->module->buffers(), group);
}

ShardedModule::Call::Call(const ShardedModule& module) : unit_(module.unit_) {
  TROUPE_CHECK(unit_ != nullptr, "a call of a Sharded that no fully_shard made");
  if (!unit_->rows.empty()) {
    const c10::Device device = unit_->device();
    if (!device.is_cpu()) {
      unit_->stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    }
    call_ = unit_->group->sharded_backwards()->begin_call(*unit_);
  }
  unit_->gather();
  ++unit_->calls;
}

ShardedModule::Call::~Call() {
  --unit_->calls;
  if (call_) unit_->group->sharded_backwards()->end_call(call_);
  unit_->release();
}

void ShardedModule::Call::returns(const at::Tensor& y) const {
  unit_->watch(y, call_);
}

}  // namespace troupe
