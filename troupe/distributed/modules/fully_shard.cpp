#include "troupe/distributed/modules/fully_shard.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"
#include "troupe/distributed/modules/module_values.h"
#include "troupe/ops/support/give_back.h"

namespace troupe {
namespace {

constexpr int64_t kAlignBytes = 64;  // an allocation's: products have the bits of a module not cut

}  // namespace

struct ShardedModule::Unit : std::enable_shared_from_this<Unit> {
  struct Parameter {
    std::string name;
    at::Tensor whole;      // the module's tensor, in the memory of its row
    at::Tensor part = {};  // a view of this rank's range of the row
    size_t row = 0;
    int64_t offset = 0;       // in the row
    int64_t part_offset = 0;  // in the range
    bool used = false;        // it got a gradient in this backward
  };
  struct Row {
    at::Tensor whole;       // [N n], without memory while the unit does not compute
    at::Tensor range = {};  // [n]
    at::Tensor grad = {};   // [n], from the unit's last gradient to the end of the backward
    bool trains = false;
  };
  class Hook;

  Unit(const std::shared_ptr<torch::nn::Module>& the_module,
       std::shared_ptr<ProcessGroup> the_group, const ShardOptions& the_options)
      : module(the_module), group(std::move(the_group)), options(the_options) {}

  static std::shared_ptr<Unit> owner_of(const at::Tensor& parameter);
  void find_inner_units();
  void make_rows();
  void make_row(const std::vector<size_t>& members);
  void attach();
  void gather();
  void scatter();
  void release();
  void free();
  uint32_t version() const;
  void watch(const at::Tensor& y);
  void before_backward(uint32_t version_of_forward);
  void on_gradient(const Parameter& p);
  void reduce();
  void end_backward();
  bool owns(const at::Tensor& whole) const;
  const Parameter& find(const at::Tensor& whole) const;

  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<ProcessGroup> group;
  ShardOptions options;
  std::vector<std::shared_ptr<Unit>> inner;  // units within, in order of their parameters
  std::vector<Parameter> parameters;         // of this unit alone
  std::vector<Row> rows;                     // one a type
  size_t num_trained = 0;                    // parameters that require a gradient
  bool is_whole = false;
  uint32_t whole_version = 0;       // of the values that were gathered
  int64_t calls = 0;                // that run
  bool waits_for_backward = false;  // kept whole between forward and backward
  bool in_backward = false;
  int task = -1;       // autograd's number of the backward that runs
  size_t arrived = 0;  // gradients in it
  bool reduced = false;
};

// Belongs to a parameter of the module and so says which unit has it.
class ShardedModule::Unit::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<Unit> the_unit, size_t parameter)
      : unit(std::move(the_unit)), parameter_(parameter) {}
  void operator()(const at::Tensor&) override {
    if (const auto u = unit.lock()) u->on_gradient(u->parameters[parameter_]);
  }
  const std::weak_ptr<Unit> unit;

 private:
  size_t parameter_;
};

std::shared_ptr<ShardedModule::Unit> ShardedModule::Unit::owner_of(const at::Tensor& parameter) {
  namespace impl = torch::autograd::impl;
  if (impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  const auto& hook = impl::post_acc_grad_hooks(parameter);
  if (hook == nullptr) return nullptr;
  const auto* const ours = dynamic_cast<const Hook*>(hook.get());
  TROUPE_CHECK(ours != nullptr, "a parameter of sizes", parameter.sizes(),
               "has a hook after its gradient already, such as a replica's");
  const std::shared_ptr<Unit> unit = ours->unit.lock();
  TROUPE_CHECK(unit != nullptr, "a parameter of sizes", parameter.sizes(),
               "belongs to a unit that is gone: keep what fully_shard returns");
  return unit;
}

// Each parameter of an inner unit belongs to a module within it, and that unit to this module.
void ShardedModule::Unit::find_inner_units() {
  std::set<const torch::nn::Module*> within;
  for (const auto& m : module->modules()) within.insert(m.get());
  std::map<const Unit*, std::set<const torch::nn::Module*>> within_inner;
  for (const auto& m : module->modules()) {
    for (const auto& item : m->named_parameters(/*recurse=*/false)) {
      const std::shared_ptr<Unit> unit = owner_of(item.value());
      if (unit == nullptr) continue;
      TROUPE_CHECK(unit->module != module && within.count(unit->module.get()) > 0, "parameter",
                   item.key(), "is in a unit already: shard inner modules first, each once");
      auto& modules = within_inner[unit.get()];
      if (modules.empty()) {
        inner.push_back(unit);
        for (const auto& x : unit->module->modules()) modules.insert(x.get());
      }
      TROUPE_CHECK(modules.count(m.get()) > 0, "parameter", item.key(), "of", m->name(),
                   "is also in a unit that has not this module: shard one that has both");
    }
  }
}

void ShardedModule::Unit::make_rows() {
  std::map<at::ScalarType, std::vector<size_t>> of_type;
  for (auto& [name, whole] : parameters_of(*module)) {
    if (owner_of(whole) != nullptr) continue;
    of_type[whole.scalar_type()].push_back(parameters.size());
    parameters.push_back({.name = name, .whole = whole});
  }
  for (const auto& [type, members] : of_type) make_row(members);
  for (const Parameter& p : parameters) num_trained += p.whole.requires_grad() ? 1 : 0;
}

void ShardedModule::Unit::make_row(const std::vector<size_t>& members) {
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

void ShardedModule::Unit::attach() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].whole,
                                                   std::make_unique<Hook>(weak_from_this(), i));
  }
}

uint32_t ShardedModule::Unit::version() const {
  uint32_t sum = 0;
  for (const Row& row : rows) sum += static_cast<uint32_t>(row.range._version());
  return sum;
}

// What is kept for a backward is gathered anew for a forward: an optimizer may have written past
// the count of writes.
void ShardedModule::Unit::gather() {
  if (is_whole && (calls > 0 || in_backward) && whole_version == version()) return;
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
void ShardedModule::Unit::scatter() {
  const at::NoGradGuard no_grad;
  for (const Row& row : rows) {
    group->broadcast(row.whole, 0).wait();
    const int64_t n = row.range.numel();
    row.range.copy_(row.whole.narrow(0, group->rank() * n, n));
  }
  whole_version = version();
}

void ShardedModule::Unit::free() {
  for (const Row& row : rows) release_memory(row.whole);
  is_whole = false;
}

void ShardedModule::Unit::release() {
  if (calls == 0 && !in_backward && !waits_for_backward) free();
}

// The backward of a call begins at a tensor that it returned.
void ShardedModule::Unit::watch(const at::Tensor& y) {
  if (rows.empty() || !y.defined()) return;
  for (const Row& row : rows) {
    TROUPE_CHECK(!y.has_storage() || !y.storage().is_alias_of(row.whole.storage()), "a result of",
                 module->name(), "with sizes", y.sizes(),
                 "shares memory with a parameter, which is freed now: return a copy");
  }
  // A leaf is an argument that was passed through: its gradient does not come through this call.
  if (!y.requires_grad() || y.is_leaf() || !at::GradMode::is_enabled()) return;
  if (!options.reshard_after_forward) waits_for_backward = true;
  y.register_hook([self = shared_from_this(), of_forward = version()](const at::Tensor&) {
    self->before_backward(of_forward);
  });
}

void ShardedModule::Unit::before_backward(uint32_t version_of_forward) {
  TROUPE_CHECK(!at::GradMode::is_enabled(), "a backward with create_graph through", module->name(),
               "whose parameters are sharded");
  TROUPE_CHECK(version_of_forward == version(), "the parameters of", module->name(),
               "changed between its forward and this backward, such as by an optimizer's step");
  const int now = torch::autograd::get_current_graph_task_id();
  // Also after a backward that threw, whose end never came.
  if (now != task) {
    task = now;
    arrived = 0;
    reduced = false;
    in_backward = true;
    for (Parameter& p : parameters) {
      p.used = false;
      p.whole.mutable_grad().reset();
    }
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->end_backward(); });
  }
  gather();
}

void ShardedModule::Unit::on_gradient(const Parameter& p) {
  TROUPE_CHECK(task == torch::autograd::get_current_graph_task_id() && !reduced, "the gradient of",
               p.name, "does not come from what a call of", module->name(), "returned");
  if (++arrived == num_trained) reduce();
}

void ShardedModule::Unit::reduce() {
  const at::NoGradGuard no_grad;
  reduced = true;
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
    whole[p.row].narrow(0, p.offset, grad.numel()).view(grad.sizes()).copy_(grad);
    p.used = true;
    grad.reset();
  }
  // All that needed the values has them behind it once all have a gradient; what does not train
  // may be needed for the gradient of the unit's input.
  if (all_train && arrived == num_trained) {
    in_backward = waits_for_backward = false;
    release();
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].trains) continue;
    rows[i].grad = at::empty_like(rows[i].range);
    group->reduce_scatter({rows[i].grad}, {whole[i]}).wait();
    rows[i].grad.div_(group->size());
  }
}

void ShardedModule::Unit::end_backward() {
  const at::NoGradGuard no_grad;
  if (!reduced) reduce();
  in_backward = waits_for_backward = false;
  task = -1;
  release();
  if (num_trained == 0) return;
  std::vector<bool> used;
  for (const Parameter& p : parameters) used.push_back(p.used);
  used = set_on_any_rank(used, rows.front().range.device(), *group);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!used[i]) continue;
    const Parameter& p = parameters[i];
    const at::Tensor mean = rows[p.row].grad.narrow(0, p.part_offset, p.part.numel());
    at::Tensor& grad = p.part.mutable_grad();
    if (grad.defined()) {
      grad.add_(mean);
    } else {
      grad = mean.clone();  // no view: Optimizer::zero_grad() detaches it in place
    }
  }
  for (Row& row : rows) row.grad.reset();
}

bool ShardedModule::Unit::owns(const at::Tensor& whole) const {
  return std::ranges::any_of(parameters,
                             [&](const Parameter& p) { return p.whole.is_same(whole); });
}

const ShardedModule::Unit::Parameter& ShardedModule::Unit::find(const at::Tensor& whole) const {
  for (const Parameter& p : parameters) {
    if (p.whole.is_same(whole)) return p;
  }
  for (const auto& unit : inner) {
    if (unit->owns(whole)) return unit->find(whole);
  }
  fail(Code::kBrokenContract, module->name(), "a parameter of sizes", whole.sizes(),
       "is not the one that was sharded: register all before fully_shard");
}

ShardedModule::ShardedModule(const std::shared_ptr<torch::nn::Module>& module,
                             std::shared_ptr<ProcessGroup> group, const ShardOptions& options)
    : unit_(std::make_shared<Unit>(module, std::move(group), options)) {
  TROUPE_CHECK(module != nullptr, "no module to shard");
  if (unit_->group->size() == 1) return;
  require_same_module(*module, *unit_->group);
  unit_->find_inner_units();
  unit_->make_rows();
  unit_->attach();
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
  std::vector<std::shared_ptr<Unit>> units = unit_->inner;
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
  unit_->gather();
  ++unit_->calls;
}

ShardedModule::Call::~Call() {
  --unit_->calls;
  unit_->release();
}

void ShardedModule::Call::returns(const at::Tensor& y) const {
  unit_->watch(y);
}

}  // namespace troupe
