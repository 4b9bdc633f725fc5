#include "troupe/train/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// What a fault asks to be put into a tensor: NaN or infinity; otherwise the tensor as it is.
at::Tensor spoiled(const at::Tensor& x, FaultAction action) {
  if (action == FaultAction::kNan) return x * std::numeric_limits<double>::quiet_NaN();
  if (action == FaultAction::kInf) return x * std::numeric_limits<double>::infinity();
  return x;
}

void add_to(at::Tensor& sum, const at::Tensor& x, double factor = 1) {
  const at::Tensor wide = x.detach().to(at::kDouble) * factor;
  sum = sum.defined() ? sum.add_(wide) : wide.clone();
}

// The roots of a unit's backward, and the gradient of each.
struct Roots {
  std::vector<at::Tensor> values, gradients;
  void add(const at::Tensor& value, const at::Tensor& gradient) {
    if (!value.defined() || !value.requires_grad()) return;
    values.push_back(value);
    gradients.push_back(gradient);
  }
  void add(const at::Tensor& value, double gradient) {
    if (value.defined()) add(value, at::full({}, gradient, value.options()));
  }
};

}  // namespace

// How many ranks have rows in microbatch m; the others have one without (share_of).
int64_t ranks_with(int64_t m, const StepInput& input) {
  const int64_t ranks = input.context.replicas, full = input.all_microbatches / ranks;
  return m < full ? ranks : m == full ? input.all_microbatches % ranks : 0;
}

class Executor::Watched {
 public:
  Watched(Executor& executor, Phase phase, double PhaseSeconds::*seconds, int unit = -1)
      : executor_(executor),
        seconds_(seconds),
        scope_(executor.pulse_, phase, std::max(unit, 0),
               unit < 0 ? 0 : static_cast<int>(executor.model_.num_units())) {}
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double waited = executor_.pulse_.waited_seconds() - waited_;
    executor_.seconds_.*seconds_ += passed.count();
    executor_.seconds_.own.*seconds_ += passed.count() - waited;
  }

 private:
  Executor& executor_;
  double PhaseSeconds::*seconds_;
  PulseScope scope_;
  double waited_ = executor_.pulse_.waited_seconds();
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Executor::Executor(Model& model, ParamStore& store, const Faults& faults,
                   const std::vector<int>& owners, Pulse& pulse)
    : model_(model), store_(store), faults_(faults), pulse_(pulse) {
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    auto& params = unit_params_.emplace_back();
    auto& buckets = unit_buckets_.emplace_back();
    const int owner = owners[static_cast<size_t>(unit)];
    std::vector<int64_t>& all = owned_buckets_[owner];
    owned_units_[owner].push_back(unit);
    model.for_each_param(unit, [&](const std::string&, Param& p) {
      const int64_t slot = store.slot_of(&p);
      if (slot < 0) return;
      params.emplace_back(slot, &p);
      const int64_t bucket = store.slots()[static_cast<size_t>(slot)].bucket;
      for (std::vector<int64_t>* list : {&buckets, &all}) {
        if (std::find(list->begin(), list->end(), bucket) == list->end()) list->push_back(bucket);
      }
    });
  }
}

StepOutput Executor::run(const std::vector<Action>& list, const StepInput& input,
                         const Handlers& handlers) {
  out_ = {};
  seconds_ = {};
  store_.begin_step();
  for (const Action& action : list) {
    switch (action.kind) {
      case Kind::kForwardLight: forward(action, input, true); break;
      case Kind::kForward: forward(action, input, false); break;
      case Kind::kBackward: backward(action, input, handlers); break;
      case Kind::kGather: store_.gather(owned_buckets_.at(action.chunk)); break;
      case Kind::kFree: store_.drop(owned_buckets_.at(action.chunk)); break;
      case Kind::kReduce: reduce(action, input); break;
      case Kind::kUpdate: {
        const Watched watched(*this, Phase::kOptim, &PhaseSeconds::update);
        store_.end_step();
        if (handlers.update) handlers.update(out_);
        break;
      }
      case Kind::kSnapshot:
        if (handlers.snapshot) handlers.snapshot();
        break;
      default: TROUPE_CHECK(false, "there is no handler for", to_text(action.kind));
    }
  }
  outputs_.clear();
  gradients_.clear();
  live_.clear();
  return std::exchange(out_, {});
}

void Executor::reduce(const Action& action, const StepInput& input) {
  const Watched watched(*this, Phase::kReduce, &PhaseSeconds::reduce, action.chunk);
  faults_.at("reduce", input.context.step);
  const bool last =
      action.microbatch < 0 || action.microbatch + 1 == static_cast<int>(input.microbatches.size());
  for (const int64_t unit : owned_units_.at(action.chunk)) store_.reduce(unit, last);
}

void Executor::forward(const Action& action, const StepInput& input, bool light) {
  const Watched watched(*this, Phase::kForward, &PhaseSeconds::forward, action.chunk);
  store_.need(unit_buckets_[static_cast<size_t>(action.chunk)]);
  const Cell cell{action.chunk, action.microbatch};
  const Batch& batch = input.microbatches[static_cast<size_t>(action.microbatch)];
  Context context = input.context;
  context.owns_backward = !light;
  context.first_token =
      input.first_token + action.microbatch * input.microbatches[0].ids_BS.numel();
  context.replicas = ranks_with(action.microbatch, input);
  at::Tensor h;
  if (action.chunk > 0) h = outputs_.at({action.chunk - 1, action.microbatch});
  const at::AutoGradMode graph(!light);
  if (!light && h.defined()) h = h.detach().set_requires_grad(true);
  UnitResult result = model_.forward(action.chunk, h, batch, context);
  const FaultAction fault = faults_.at("forward." + std::to_string(action.chunk), context.step);
  if (fault != FaultAction::kNone) {
    at::Tensor& value = result.h.defined() ? result.h : result.loss_sum;
    value = spoiled(value, fault);
  }
  if (result.h.defined()) outputs_[cell] = result.h.detach();
  if (light) return;
  collect(action, result, input);
  live_[cell] = {h, std::move(result)};
}

void Executor::collect(const Action& action, const UnitResult& result, const StepInput& input) {
  const at::NoGradGuard no_grad;
  const auto m = static_cast<size_t>(action.microbatch);
  const bool counts = input.microbatches[m].ids_BS.numel() > 0;
  if (result.loss_sum.defined()) add_to(out_.loss, result.loss_sum, input.factors[m]);
  if (result.mtp_sum.defined()) add_to(out_.mtp, result.mtp_sum, input.factors[m]);
  for (const MoeLoss& loss : result.losses) {
    add_to(out_.aux[loss.name], loss.value / loss.coefficient);
    out_.aux_terms[loss.name] += counts;
  }
  std::vector<MoeStats>& own = out_.moe[action.chunk];
  own.resize(std::max(own.size(), result.stats.size()));
  for (size_t i = 0; i < result.stats.size(); ++i) {
    own[i].counts_E.defined() ? void(own[i] += result.stats[i]) : void(own[i] = result.stats[i]);
  }
  if (own.empty()) out_.moe.erase(action.chunk);
}

void Executor::backward(const Action& action, const StepInput& input, const Handlers& handlers) {
  const Watched watched(*this, Phase::kBackward, &PhaseSeconds::backward, action.chunk);
  const Cell cell{action.chunk, action.microbatch};
  Live live = std::move(live_.at(cell));
  live_.erase(cell);
  const auto& params = unit_params_[static_cast<size_t>(action.chunk)];
  const UnitResult& r = live.result;
  const double token = input.loss_scale * input.factors[static_cast<size_t>(action.microbatch)];
  const double aux = input.loss_scale / static_cast<double>(input.all_microbatches);
  store_.need(unit_buckets_[static_cast<size_t>(action.chunk)]);
  Roots roots;
  const auto above = gradients_.find({action.chunk + 1, action.microbatch});
  if (above != gradients_.end()) roots.add(r.h, above->second);
  roots.add(r.loss_sum, token);
  roots.add(r.mtp_sum, token);
  for (const MoeLoss& loss : r.losses) roots.add(loss.value, aux);
  std::vector<at::Tensor> wanted;
  if (live.input.defined()) wanted.push_back(live.input);
  for (const auto& [slot, p] : params) wanted.push_back(p->value);
  std::vector<at::Tensor> grads(wanted.size());
  if (!roots.values.empty() && !wanted.empty()) {
    grads = torch::autograd::grad(roots.values, wanted, roots.gradients, std::nullopt,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  }
  const FaultAction fault =
      faults_.at("backward." + std::to_string(action.chunk), input.context.step);
  size_t at = 0;
  if (live.input.defined()) gradients_[cell] = grads[at++];
  for (const auto& [slot, p] : params) {
    const at::Tensor gradient = spoiled(grads[at++], fault);
    if (handlers.gradient && gradient.defined()) handlers.gradient(action, slot, gradient);
    store_.add(slot, gradient);
  }
  gradients_.erase({action.chunk + 1, action.microbatch});
  outputs_.erase({action.chunk - 1, action.microbatch});
}

}  // namespace troupe
