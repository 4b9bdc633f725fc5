#include "troupe/distributed/modules/sharded_backwards.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/modules/module_values.h"

namespace troupe {

struct ShardedBackwards::Backward {
  struct Step {
    std::shared_ptr<ShardedCall> call;
    std::shared_ptr<ShardedUnit> unit;
    bool fetches = false;
  };
  struct Begun {
    std::shared_ptr<ShardedUnit> unit;
    int64_t first = 0;  // begin of its first call
    bool reduced = false;
  };

  ~Backward() {
    for (const Begun& b : begun) b.unit->leave_backward(task);
  }
  void add(const std::shared_ptr<ShardedCall>& call, bool fetches);
  void go_to(size_t step);
  void end(ProcessGroup& group);

  int task = -1;
  std::vector<Step> steps = {};
  size_t next = 0;
  std::vector<Begun> begun = {};
};

namespace {

// Whether the backward that runs, which has come to `here`, comes to this call on this rank.
bool is_reached(const ShardedCall& call, const ShardedCall& here) {
  const auto& nodes = *torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto& needed = *torch::autograd::get_current_graph_task_exec_info();
  return std::ranges::any_of(call.results, [&](const auto& result) {
    torch::autograd::Node* const node = result.lock().get();
    if (node == nullptr) return false;
    // The root of a graph is not among its nodes.
    if (std::ranges::any_of(here.results, [&](const auto& r) { return r.lock().get() == node; })) {
      return true;
    }
    if (needed.empty()) return nodes.count(node) > 0;
    const auto found = needed.find(node);
    return found != needed.end() && found->second.should_execute();
  });
}

bool has_graph(const ShardedCall& call) {
  return std::ranges::any_of(call.results, [](const auto& node) { return !node.expired(); });
}

}  // namespace

void ShardedBackwards::Backward::add(const std::shared_ptr<ShardedCall>& call, bool fetches) {
  const std::shared_ptr<ShardedUnit> unit = call->unit.lock();
  TROUPE_CHECK(unit != nullptr, "a backward comes to a unit that is gone on this rank: keep what",
               "fully_shard returns");
  TROUPE_CHECK(call->version == unit->version(), "the parameters of", unit->module->name(),
               "changed between its forward and this backward, such as by an optimizer's step");
  steps.push_back({call, unit, fetches});
}

void ShardedBackwards::Backward::go_to(size_t step) {
  for (; next <= step; ++next) {
    const Step& now = steps[next];
    for (Begun& b : begun) {
      if (b.reduced || b.first < now.call->ended) continue;
      b.reduced = true;
      b.unit->reduce();
    }
    if (std::ranges::any_of(begun, [&](const Begun& b) { return b.unit == now.unit; })) continue;
    int64_t first = now.call->began;
    for (const Step& s : steps) {
      if (s.unit == now.unit) first = std::min(first, s.call->began);
    }
    begun.push_back({now.unit, first});
    now.unit->begin_backward(task, now.fetches);
  }
}

void ShardedBackwards::Backward::end(ProcessGroup& group) {
  go_to(steps.size() - 1);
  std::vector<bool> here;
  for (const Begun& b : begun) {
    if (!b.reduced) b.unit->reduce();
  }
  for (const Begun& b : begun) {
    const std::vector<bool> of_unit = b.unit->gradients_here();
    here.insert(here.end(), of_unit.begin(), of_unit.end());
  }
  const auto device = begun.front().unit->device();
  const std::vector<bool> anywhere = set_on_any_rank(here, device, group);
  auto from = anywhere.begin();
  for (const Begun& b : begun) {
    const auto to = from + static_cast<std::ptrdiff_t>(b.unit->parameters.size() + 1);
    b.unit->end_backward(std::vector<bool>(from, to));
    from = to;
  }
}

std::shared_ptr<ShardedCall> ShardedBackwards::begin_call(ShardedUnit& unit) {
  auto call = std::make_shared<ShardedCall>(ShardedCall{.unit = unit.weak_from_this(),
                                                        .version = unit.version(),
                                                        .recorded = at::GradMode::is_enabled(),
                                                        .began = moment_++});
  all_calls_ = hash64(std::to_string(all_calls_) + ' ' + std::to_string(unit.number));
  if (calls_.size() >= forget_at_) forget_calls(unit.device());
  return call;
}

void ShardedBackwards::end_call(const std::shared_ptr<ShardedCall>& call) {
  call->ended = moment_++;
  if (call->recorded) calls_.push_back(call);
}

// Calls without a backward, such as those of an evaluation that autograd records.
void ShardedBackwards::forget_calls(const c10::Device& device) {
  std::vector<bool> flags;
  for (const auto& call : calls_) flags.push_back(has_graph(*call));
  flags = set_on_any_rank(flags, device, group_);
  size_t i = 0;
  std::erase_if(calls_, [&](const auto&) { return !flags[i++]; });
  forget_at_ = std::max(kForgetAt, 2 * calls_.size());
}

std::shared_ptr<ShardedBackwards::Backward> ShardedBackwards::begin(int task,
                                                                    const ShardedCall& first) {
  const c10::Device device = first.unit.lock()->device();
  const size_t n = calls_.size();
  const uint64_t calls = hash64(std::to_string(all_calls_) + ' ' + std::to_string(n));
  const std::vector<int64_t> others =
      ranks_unlike_first(static_cast<int64_t>(calls), device, group_);
  if (!others.empty()) {
    fail(Code::kRanksDiffer, "backward of sharded modules",
         "rank(s) " + rank_list(others) + " called other units than rank " +
             std::to_string(group_.ranks().front()) +
             ", or in another order, so that values of different units were mixed; call the same "
             "units on every rank, and leave out of the loss what a rank does not use");
  }
  std::vector<bool> flags(3 * n);  // reached; has a graph; its unit is to be fetched
  for (size_t i = 0; i < n; ++i) {
    flags[i] = is_reached(*calls_[i], first);
    flags[n + i] = has_graph(*calls_[i]);
    const auto u = calls_[i]->unit.lock();
    flags[2 * n + i] = u == nullptr || !u->is_kept();
  }
  flags = set_on_any_rank(flags, device, group_);
  const auto out = std::make_shared<Backward>();
  out->task = task;
  for (size_t i = n; i-- > 0;) {
    if (flags[i]) out->add(calls_[i], flags[2 * n + i]);
  }
  size_t i = 0;
  std::erase_if(calls_, [&](const auto&) { return !flags[n + i++]; });
  return out;
}

void ShardedBackwards::come_to(const std::shared_ptr<ShardedCall>& call) {
  TROUPE_CHECK(!at::GradMode::is_enabled(),
               "a backward with create_graph through a module whose parameters are sharded");
  const int task = torch::autograd::get_current_graph_task_id();
  std::shared_ptr<Backward> backward = running_[task].lock();
  if (backward == nullptr) {
    std::erase_if(running_, [](const auto& item) { return item.second.expired(); });
    backward = begin(task, *call);
    running_[task] = backward;
    // Belongs to the callback, and so ends with the backward, also with one that throws.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [backward, &group = group_] { backward->end(group); });
  }
  const auto step = std::ranges::find(backward->steps, call, &Backward::Step::call);
  TROUPE_CHECK(step != backward->steps.end(), "a backward came to a call that it had left out");
  backward->go_to(static_cast<size_t>(step - backward->steps.begin()));
}

}  // namespace troupe
