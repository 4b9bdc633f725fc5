#include "troupe/ops/support/autograd.h"

#include <ATen/SequenceNumber.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/support/kept.h"
#include "troupe/ops/support/record_late.h"
#include "troupe/ops/support/torch_versions/graph_node.h"

namespace troupe {
namespace {

namespace autograd = torch::autograd;

// The leaf that a weight is, or is a view of all of in its order; else undefined.
at::Tensor parameter_of(const at::Tensor& w) {
  if (!w.defined() || !w.requires_grad()) return {};
  if (w.is_leaf()) return w;
  if (!w.is_view() || !w.is_contiguous()) return {};
  const at::Tensor base(w._base());
  const bool whole = base.is_leaf() && base.is_contiguous() && base.numel() == w.numel();
  return whole ? base : at::Tensor();
}

class RecordedNode : public GraphNode {
 public:
  RecordedNode(Record& r, BackwardOrder order)
      : GraphNode(order.number),
        name_(r.name),
        backward_(std::move(r.backward)),
        again_(std::move(r.again)) {
    set_next_edges(autograd::collect_next_edges(r.inputs));
  }
  // With some inputs' gradients put off: the graph does not lead to them.
  RecordedNode(Record& r, std::vector<size_t> late, std::shared_ptr<LateQueue> queue)
      : name_(r.name),
        backward_(std::move(r.backward)),
        again_(std::move(r.again)),
        late_(std::move(late)),
        queue_(std::move(queue)) {
    for (const size_t i : late_) {
      parameters_.push_back(parameter_of(std::exchange(r.inputs[i], at::Tensor())));
    }
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
    const bool last = g.last && late_.empty();  // the later half reads them once more
    Gradients later = late_.empty() ? Gradients() : g;
    g.last = last;
    TensorList results = backward_(g);
    if (!late_.empty()) put_off(std::move(later));
    TROUPE_CHECK(results.size() == num_outputs(), name_, "returned", results.size(),
                 "gradients for", num_outputs(), "inputs");
    return create_graph ? with_no_second(std::move(results)) : results;
  }

  TensorList saved() {
    TensorList out;
    for (const Kept& x : saved_) {
      out.push_back(x.maker ? x.maker->first_output() : x.variable.unpack(getptr()));
    }
    return out;
  }

  // What hooks have packed is theirs.
  void visit_kept(const std::function<void(const at::Tensor&)>& f) const {
    for (const Kept& x : saved_) {
      if (x.maker) continue;
      const std::optional<at::Tensor> held = x.variable.get_raw_data();
      if (held && held->defined()) f(*held);
    }
  }

  void release_variables() override {
    for (Kept& x : saved_) {
      x.variable.reset_data();
      x.maker.reset();
    }
    made_again_.reset();
  }

  void let_go() override {
    saved_.clear();
    parameters_.clear();
    made_again_.reset();
    backward_ = nullptr;
    again_ = nullptr;
    queue_.reset();
  }

  std::string name() const override { return std::string("troupe::") + name_; }

 private:
  // A saved tensor, or the node that makes it again.
  struct Kept {
    autograd::SavedVariable variable;
    NodePtr<RecordedNode> maker;
  };

  // The queue may outlive the node.
  void put_off(Gradients g) {
    g.needs.assign(num_outputs(), false);
    for (const size_t i : late_) g.needs[i] = true;
    queue_->push([backward = backward_, late = late_, parameters = parameters_,
                  g = std::move(g)](const LateQueue::Add& add) {
      const TensorList results = backward(g);
      for (size_t i = 0; i < late.size(); ++i) {
        const at::Tensor& gradient = results[late[i]];
        if (gradient.defined()) add(parameters[i], gradient.reshape(parameters[i].sizes()));
      }
    });
  }

  static NodePtr<RecordedNode> maker_of(const at::Tensor& x) {
    if (!x.defined() || x.output_nr() != 0) return nullptr;
    auto node = node_as<RecordedNode>(x.grad_fn());
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
    auto error = make_node<autograd::DelayedError>(name() + " has no second derivative",
                                                   static_cast<int64_t>(results.size()));
    return (*error)(std::move(results));
  }

  const char* name_;
  BackwardFn backward_;
  AgainFn again_;
  std::vector<size_t> late_;  // inputs whose gradients go to the queue
  TensorList parameters_;     // these inputs
  std::shared_ptr<LateQueue> queue_;
  std::vector<Kept> saved_;
  at::Tensor made_again_;  // the first output, while backwards that saved it run
};

}  // namespace

TensorList kept_for_backward(const at::Tensor& result) {
  auto* node = dynamic_cast<RecordedNode*>(result.grad_fn().get());
  TROUPE_CHECK(node != nullptr, "no operator of this library recorded a gradient for this tensor");
  return node->saved();
}

bool visit_kept(const autograd::Node& node, const std::function<void(const at::Tensor&)>& f) {
  const auto* own = dynamic_cast<const RecordedNode*>(&node);
  if (own == nullptr) return false;
  own->visit_kept(f);
  return true;
}

bool wants_grad(const TensorList& inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& x : inputs) {
    if (x.defined() && x.requires_grad()) return true;
  }
  return false;
}

namespace {

void attach(Record& r, const NodePtr<RecordedNode>& node) {
  for (at::Tensor& y : r.outputs) autograd::set_history(y, node);
  node->save(r.saved, r.outputs);
  announce(node);
}

}  // namespace

void record(Record r) {
  record(std::move(r), take_backward_order());
}

BackwardOrder take_backward_order() {
  return {at::sequence_number::get_and_increment()};
}

void record(Record r, BackwardOrder order) {
  if (!wants_grad(r.inputs)) return;
  attach(r, make_node<RecordedNode>(r, order));
}

namespace {

// record_halves() of a function that makes any of its gradients.
bool record_halves_of_one(const Record& r, size_t first, const WeightsApart& apart) {
  const auto kept = std::make_shared<std::optional<Gradients>>();
  Record first_half = r;
  first_half.backward = [backward = r.backward, kept, first](const Gradients& g) {
    Gradients own = g;
    const auto weights = own.needs.begin() + static_cast<int64_t>(first);
    const bool later = std::find(weights, own.needs.end(), true) != own.needs.end();
    std::fill(weights, own.needs.end(), false);
    own.last = own.last && !later;
    TensorList out = backward(own);
    kept->reset();
    if (later) *kept = std::move(own);
    return out;
  };
  return record_halves(first_half, {.name = apart.name,
                                    .first_weight = first,
                                    .weights =
                                        [backward = r.backward, kept](const Gradients& g) {
                                          Gradients own = std::move(kept->value());
                                          kept->reset();
                                          own.needs = g.needs;
                                          return backward(own);
                                        },
                                    .order = apart.order});
}

}  // namespace

void record_late(Record r, size_t first_weight, const WeightsApart& apart) {
  const std::shared_ptr<LateQueue>& queue = LateScope::current();
  if (queue == nullptr && apart.order && record_halves_of_one(r, first_weight, apart)) return;
  const TensorList others(r.inputs.begin(), r.inputs.begin() + static_cast<int64_t>(first_weight));
  if (queue == nullptr || !wants_grad(others)) return record(std::move(r));
  std::vector<size_t> late;
  for (size_t i = first_weight; i < r.inputs.size(); ++i) {
    if (parameter_of(r.inputs[i]).defined()) late.push_back(i);
  }
  attach(r, make_node<RecordedNode>(r, std::move(late), queue));
}

namespace {

// `g` for all inputs of an operator, of which its own node has those before `first`.
Gradients for_all(const Gradients& g, size_t first, const std::vector<bool>& weights) {
  Gradients out = g;
  out.needs.resize(first);
  out.needs.insert(out.needs.end(), weights.begin(), weights.end());
  return out;
}

// The second half waits in the queue.
void record_queued(Record first_half, const Halves& h, const TensorList& weights,
                   const std::vector<bool>& wanted, const std::shared_ptr<LateQueue>& queue) {
  TensorList parameters;
  for (const at::Tensor& w : weights) parameters.push_back(parameter_of(w));
  first_half.backward = [backward = std::move(first_half.backward), second = h.weights, parameters,
                         wanted, queue, first = h.first_weight](const Gradients& g) {
    TensorList out = backward(for_all(g, first, wanted));
    queue->push([second, parameters, wanted, first](const LateQueue::Add& add) {
      const TensorList grads = second(for_all({}, first, wanted));
      for (size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor& gradient = grads[first + i];
        if (gradient.defined()) add(parameters[i], gradient.reshape(parameters[i].sizes()));
      }
    });
    out.resize(first);
    return out;
  };
  record(std::move(first_half));
}

// The second half is a node of its own, which an empty tensor ties behind the first.
void record_apart(Record first_half, const Halves& h, const TensorList& weights,
                  const std::vector<bool>& wanted) {
  const at::Tensor tie = at::empty({0}, first_half.outputs[0].options().requires_grad(false));
  record({.name = h.name,
          .inputs = weights,
          .outputs = {tie},
          .saved = {},
          .backward =
              [second = h.weights, first = h.first_weight](const Gradients& g) {
                const TensorList out = second(for_all({}, first, g.needs));
                return TensorList(out.begin() + static_cast<int64_t>(first), out.end());
              }},
         *h.order);
  first_half.inputs.push_back(tie);
  first_half.backward = [backward = std::move(first_half.backward), wanted,
                         first = h.first_weight](const Gradients& g) {
    const std::vector<bool> none(wanted.size(), false);
    TensorList out = backward(for_all(g, first, g.needs[first] ? wanted : none));
    out.resize(first);
    out.emplace_back();
    return out;
  };
  record(std::move(first_half));
}

}  // namespace

bool record_halves(const Record& r, const Halves& h) {
  const std::shared_ptr<LateQueue>& queue = LateScope::current();
  const auto border = r.inputs.begin() + static_cast<int64_t>(h.first_weight);
  const TensorList others(r.inputs.begin(), border), weights(border, r.inputs.end());
  if (queue == nullptr && !h.order) return false;
  if (!wants_grad(others) || !wants_grad(weights)) return false;
  std::vector<bool> wanted;
  for (const at::Tensor& w : weights) {
    wanted.push_back(w.defined() && w.requires_grad());
    if (queue != nullptr && wanted.back() && !parameter_of(w).defined()) return false;
  }
  Record first_half = r;
  first_half.inputs = others;
  if (queue != nullptr) {
    record_queued(std::move(first_half), h, weights, wanted, queue);
  } else {
    record_apart(std::move(first_half), h, weights, wanted);
  }
  return true;
}

}  // namespace troupe
