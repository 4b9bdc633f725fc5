#include "troupe/ops/support/autograd.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/support/kept.h"

namespace troupe {
namespace {

namespace autograd = torch::autograd;

class RecordedNode : public autograd::Node {
 public:
  explicit RecordedNode(Record& r)
      : name_(r.name), backward_(std::move(r.backward)), again_(std::move(r.again)) {
    set_next_edges(autograd::collect_next_edges(r.inputs));
  }

  // Called once the outputs know this node: a saved output must not hold its own graph.
  void save(const TensorList& saved, const TensorList& outputs) {
    for (const at::Tensor& x : saved) {
      bool is_output = false;
      for (const at::Tensor& y : outputs) is_output = is_output || x.is_same(y);
      auto maker = is_output ? nullptr : maker_of(x);
      if (maker != nullptr) {
        saved_.push_back({.variable = {}, .maker = std::move(maker)});
      } else {
        saved_.push_back({.variable = {x, is_output}, .maker = {}});
      }
    }
  }

  autograd::variable_list apply(autograd::variable_list&& grads) override {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    made_again_.reset();
    Gradients g{.outputs = std::move(grads), .saved = {}, .needs = {}};
    for (size_t i = 0; i < g.outputs.size(); ++i) {
      const auto& meta = input_metadata(static_cast<uint32_t>(i));
      if (!g.outputs[i].defined()) g.outputs[i] = meta.zeros_like();
    }
    g.saved = saved();
    // What traces a backward may run it many times.
    g.last =
        !autograd::get_current_graph_task_keep_graph() && !at::areAnyTensorSubclassLike(g.saved);
    for (size_t i = 0; i < num_outputs(); ++i) g.needs.push_back(task_should_compute_output(i));
    TensorList results = backward_(g);
    TROUPE_CHECK(results.size() == num_outputs(), name_, "returned", results.size(),
                 "gradients for", num_outputs(), "inputs");
    return create_graph ? with_no_second(std::move(results)) : results;
  }

  TensorList saved() {
    TensorList out;
    for (const Kept& x : saved_) {
      out.push_back(x.maker ? x.maker->first_output() : x.variable.unpack(shared_from_this()));
    }
    return out;
  }

  void release_variables() override {
    for (Kept& x : saved_) {
      x.variable.reset_data();
      x.maker.reset();
    }
    made_again_.reset();
  }

  std::string name() const override { return std::string("troupe::") + name_; }

 private:
  // A saved tensor, or the node that makes it again.
  struct Kept {
    autograd::SavedVariable variable;
    std::shared_ptr<RecordedNode> maker;
  };

  static std::shared_ptr<RecordedNode> maker_of(const at::Tensor& x) {
    if (!x.defined() || x.output_nr() != 0) return nullptr;
    auto node = std::dynamic_pointer_cast<RecordedNode>(x.grad_fn());
    return node != nullptr && node->again_ ? node : nullptr;
  }

  at::Tensor first_output() {
    const std::lock_guard lock(mutex_);
    if (!made_again_.defined()) {
      const at::NoGradGuard no_grad;
      made_again_ = again_(saved());
    }
    return made_again_;
  }

  // Under create_graph the gradients get a node that throws when someone differentiates them.
  autograd::variable_list with_no_second(autograd::variable_list&& results) const {
    const at::AutoGradMode with_grad(true);
    for (at::Tensor& x : results) {
      if (x.defined()) x = x.detach().requires_grad_();
    }
    auto error = std::make_shared<autograd::DelayedError>(name() + " has no second derivative",
                                                          static_cast<int64_t>(results.size()));
    return (*error)(std::move(results));
  }

  const char* name_;
  BackwardFn backward_;
  AgainFn again_;
  std::vector<Kept> saved_;
  at::Tensor made_again_;  // the first output, while backwards that saved it run
};

}  // namespace

TensorList kept_for_backward(const at::Tensor& result) {
  auto* node = dynamic_cast<RecordedNode*>(result.grad_fn().get());
  TROUPE_CHECK(node != nullptr, "no operator of this library recorded a gradient for this tensor");
  return node->saved();
}

bool wants_grad(const TensorList& inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& x : inputs) {
    if (x.defined() && x.requires_grad()) return true;
  }
  return false;
}

void record(Record r) {
  if (!wants_grad(r.inputs)) return;
  const TensorList saved = std::move(r.saved);
  auto node = std::make_shared<RecordedNode>(r);
  for (at::Tensor& y : r.outputs) autograd::set_history(y, node);
  node->save(saved, r.outputs);
}

}  // namespace troupe
