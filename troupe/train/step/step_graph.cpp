#include "troupe/train/step/step_graph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace {

template <class Output, class F>
void for_each_tensor(Output& out, F&& f) {
  const auto visit = [&](auto& x) {
    if (x.defined()) f(x);
  };
  visit(out.loss);
  visit(out.mtp);
  for (auto& [name, sum] : out.aux) visit(sum);
  for (auto& [unit, layers] : out.moe) {
    for (auto& stats : layers) {
      for (auto* x : {&stats.counts_E, &stats.dropped, &stats.score_sum, &stats.saturated})
        visit(*x);
    }
  }
}

// Also undefined ones. Documents and slices are not among them: with these a step is eager.
template <class F>
void for_each_tensor_of(Batch& batch, F&& f) {
  for (at::Tensor* x :
       {&batch.ids_BS, &batch.labels_BS, &batch.weights_BS, &batch.positions_BS, &batch.valid_BS}) {
    f(*x);
  }
  for (at::Tensor& x : batch.replay_TK) f(x);
  for (AheadTokens& ahead : batch.ahead) {
    for (at::Tensor* x : {&ahead.ids_BS, &ahead.labels_BS, &ahead.weights_BS}) f(*x);
  }
}

std::vector<at::Tensor> tensors_of(const StepInput& input) {
  std::vector<at::Tensor> out;
  for (Batch batch : input.microbatches) {
    for_each_tensor_of(batch, [&](const at::Tensor& x) { out.push_back(x); });
  }
  return out;
}

std::string shape_key(const StepInput& input) {
  const Context& c = input.context;
  std::string out;
  for (const int64_t number :
       {std::ssize(input.microbatches), input.all_microbatches, input.first_token,
        int64_t{input.counts_terms}, int64_t{c.training}, int64_t{c.budgeted}}) {
    out += std::to_string(number) + ' ';
  }
  for (const at::Tensor& x : tensors_of(input)) {
    if (x.defined()) out += std::to_string(static_cast<int>(x.scalar_type()));
    for (int64_t d = 0; x.defined() && d < x.dim(); ++d) out += ',' + std::to_string(x.size(d));
    out += ';';
  }
  return out;
}

std::string why_eager(const StepInput& input) {
  if (input.keep_choices) return "the routers' choices are kept (log.routing)";
  for (const Batch& batch : input.microbatches) {
    if (batch.documents_BS.defined()) {
      return "a row holds several documents or padding, whose lengths attention is given by the "
             "host";
    }
    if (batch.slice != nullptr || batch.cache != nullptr) return "rows are cut";
  }
  return {};
}

at::TensorOptions pinned_f64() {
  return at::TensorOptions(at::kDouble).pinned_memory(true);
}

// The copy is behind what reads the last step's.
void fill_numbers(const at::Tensor& numbers, const std::vector<double>& values) {
  const at::Tensor host = at::empty(numbers.sizes(), pinned_f64());
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<double>());
  numbers.copy_(host, /*non_blocking=*/true);
}

// All but the update, and what one rank has nothing to do for.
std::vector<Action> before_update(const std::vector<Action>& list) {
  const auto update = std::ranges::find(list, Kind::kUpdate, &Action::kind);
  TROUPE_CHECK(update != list.end() && std::next(update) == list.end(),
               "the update is not the last action of a step of", list.size());
  return {list.begin(), update};
}

}  // namespace

std::string why_no_graph(bool alone, const c10::Device& device, const Faults& faults) {
  if (!device.is_cuda()) return "on a " + device.str() + " there are none";
  if (!alone) return "those of several ranks are not captured yet";
  if (!faults.empty()) return "TROUPE_FAULT asks for faults, which a replay would pass over";
  return {};
}

const char* captured_parts(bool update) {
  return update ? "forward, backward and update" : "forward and backward";
}

PackedOutput::PackedOutput(const StepOutput& output) : form_(output) {
  std::map<at::ScalarType, std::vector<at::Tensor>> parts;
  for_each_tensor(form_, [&](const at::Tensor& x) {
    parts[x.scalar_type()].push_back(x.detach().reshape({-1}));
  });
  for (const auto& [type, all] : parts) flat_[type] = at::cat(all);
}

StepOutput PackedOutput::copy() const {
  struct Rest {
    at::Tensor flat;
    int64_t begin = 0;
  };
  std::map<at::ScalarType, Rest> rests;
  for (const auto& [type, flat] : flat_) rests[type] = {flat.clone()};
  StepOutput out = form_;
  for_each_tensor(out, [&](at::Tensor& x) {
    Rest& rest = rests.at(x.scalar_type());
    const int64_t begin = rest.begin;
    rest.begin += x.numel();
    x = rest.flat.narrow(0, begin, x.numel()).view(x.sizes());
  });
  return out;
}

StepGraph::StepGraph(Model& model, ParamStore& store, Executor& executor, StepUpdate* update,
                     Pulse& pulse, const c10::Device& device)
    : model_(model),
      store_(store),
      executor_(executor),
      update_(update),
      pulse_(pulse),
      graphs_(device_graphs(device)) {}

StepOutput StepGraph::run(const std::vector<Action>& list, const StepInput& input,
                          const Executor::Handlers& handlers, const GraphUpdate& update) {
  note_.clear();
  ++steps_;
  const std::string why = why_eager(input);
  if (!why.empty()) {
    if (told_.insert(why).second) note_ = "cuda graph: eager, as is each such step: " + why;
    return eager(list, input, handlers);
  }
  Shape& shape = shapes_[shape_key(input)];
  shape.last_use = steps_;
  if (shape.graph == nullptr) {
    if (shape.eager_steps++ < kWarmSteps) {
      StepOutput out;
      graphs_->on_stream([&] { out = eager(list, input, handlers); });
      return out;
    }
    forget_oldest();
    capture(shape, list, input, update);
  }
  return replay(shape, input, handlers, update);
}

StepOutput StepGraph::eager(const std::vector<Action>& list, const StepInput& input,
                            const Executor::Handlers& handlers) {
  StepOutput out = executor_.run(list, input, handlers);
  seconds_ = executor_.seconds();
  return out;
}

// Never the last one: the pool would go with it.
void StepGraph::forget_oldest() {
  size_t captured = 0;
  auto oldest = shapes_.end();
  for (auto it = shapes_.begin(); it != shapes_.end(); ++it) {
    if (it->second.graph == nullptr) continue;
    ++captured;
    if (oldest == shapes_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
  }
  if (captured >= kMostGraphs) shapes_.erase(oldest);
}

void StepGraph::for_each_of_step(const VisitTensor& f) {
  model_.for_each_moe([&](int64_t, MoeLayer& moe) { moe.for_each_of_step(f); });
}

void StepGraph::capture(Shape& shape, const std::vector<Action>& list, const StepInput& input,
                        const GraphUpdate& update) {
  shape.input = input;
  for (Batch& batch : shape.input.microbatches) {
    for_each_tensor_of(batch, [](at::Tensor& x) {
      if (x.defined()) x = x.clone();
    });
  }
  const auto own = std::ssize(step_numbers(input));
  const auto others = update_ != nullptr ? std::ssize(update.numbers()) : 0;
  shape.numbers = at::empty({own + others}, store_.options().dtype(at::kDouble));
  shape.input.numbers = shape.numbers.narrow(0, 0, own);
  const at::Tensor of_update = shape.numbers.narrow(0, own, others);
  const std::vector<Action> part = before_update(list);
  store_.gradients().begin_step();  // the last step's are not needed, and large
  try {
    shape.graph = graphs_->capture([&] {
      const StepOutput output = executor_.run(part, shape.input, {});
      shape.output = PackedOutput(output);
      store_.gradients().end_step();
      if (update_ != nullptr) shape.measured = update_->measure(output, of_update);
    });
    if (update_ != nullptr) {
      shape.update = graphs_->capture([&] { update_->apply(shape.measured, of_update); });
      shape.seen = at::empty(shape.measured.seen.sizes(), pinned_f64());
    }
  } catch (const std::exception& error) {
    fail(Code::kCudaFailed, "train.cuda_graph", "the step cannot be captured:", error.what(),
         "\nWith train.cuda_graph=false the run resumes from its newest checkpoint");
  }
  shape.gradients = store_.gradients().counted();
  for_each_of_step([&](const at::Tensor& x) { shape.of_step.push_back(x); });
  const auto sizes = shape.input.microbatches[0].ids_BS.sizes();
  note_ = "cuda graph: captured " + std::string(captured_parts(update_ != nullptr)) + " of " +
          std::to_string(shape.input.microbatches.size()) + " x " + std::to_string(sizes[0]) +
          " sequences of " + std::to_string(sizes[1]) + ", which are replayed from here on";
}

StepOutput StepGraph::replay(Shape& shape, const StepInput& input,
                             const Executor::Handlers& handlers, const GraphUpdate& update) {
  seconds_ = {};
  {
    const PhaseTimer timer(pulse_, Phase::kForward, seconds_, &PhaseSeconds::forward, {});
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> to = tensors_of(shape.input), from = tensors_of(input);
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i].defined()) to[i].copy_(from[i], /*non_blocking=*/true);
    }
    std::vector<double> numbers = step_numbers(input);
    if (update_ != nullptr) {
      const std::vector<double> others = update.numbers();
      numbers.insert(numbers.end(), others.begin(), others.end());
    }
    fill_numbers(shape.numbers, numbers);
    shape.graph->replay();
  }
  store_.gradients().hold(shape.gradients);
  size_t next = 0;
  for_each_of_step([&](at::Tensor& x) { x = shape.of_step.at(next++); });
  StepOutput out = shape.output.copy();
  const PhaseTimer timer(pulse_, Phase::kOptim, seconds_, &PhaseSeconds::update, {});
  if (update_ != nullptr) {
    launch_update(shape, update);
  } else if (handlers.update) {
    handlers.update(out);
  }
  return out;
}

// What was measured is on the host before the update has ended.
void StepGraph::launch_update(Shape& shape, const GraphUpdate& update) {
  const c10::Device device = store_.options().device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event measured(device.type());
  {
    const at::NoGradGuard no_grad;
    shape.seen.copy_(shape.measured.seen, /*non_blocking=*/true);
  }
  measured.record(guard.getStream(device));
  shape.update->replay();
  measured.synchronize();
  update.learn(shape.seen);
}

}  // namespace troupe
