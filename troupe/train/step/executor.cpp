#include "troupe/train/step/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// x with the NaN or infinity that an injected fault asks for; without one x itself.
at::Tensor spoiled(const at::Tensor& x, FaultAction action) {
  if (!x.defined()) return x;
  if (action == FaultAction::kNan) return x * std::numeric_limits<double>::quiet_NaN();
  if (action == FaultAction::kInf) return x * std::numeric_limits<double>::infinity();
  return x;
}

template <class Factor>  // a number, or a tensor of one
void add_to(at::Tensor& sum, const at::Tensor& x, const Factor& factor) {
  const at::Tensor wide = x.detach().to(at::kDouble) * factor;
  sum = sum.defined() ? sum.add_(wide) : wide.clone();
}

// Number i of step_numbers(), where it is.
void add_to(at::Tensor& sum, const at::Tensor& x, const StepInput& input, size_t i) {
  if (input.numbers.defined()) return add_to(sum, x, input.numbers[static_cast<int64_t>(i)]);
  add_to(sum, x, step_numbers(input)[i]);
}

// The same as a gradient of `value`.
at::Tensor gradient_number(const StepInput& input, size_t i, const at::Tensor& value) {
  if (!input.numbers.defined()) return at::full({}, step_numbers(input)[i], value.options());
  const at::Tensor number = input.numbers[static_cast<int64_t>(i)];
  return number.to(value.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

// The roots of a unit's backward, and the gradient of each.
struct Roots {
  std::vector<at::Tensor> values, gradients;
  void add(const at::Tensor& value, const at::Tensor& gradient) {
    if (!value.defined() || !value.requires_grad()) return;
    values.push_back(value);
    gradients.push_back(gradient);
  }
  void add(const at::Tensor& value, const StepInput& input, size_t number) {
    if (value.defined()) add(value, gradient_number(input, number, value));
  }
};

// `above`: the gradient of the unit's output; undefined where it has none.
Roots roots_of(const Action& action, const UnitResult& r, const at::Tensor& above,
               const StepInput& input) {
  const auto token = static_cast<size_t>(action.microbatch);
  const size_t aux = 2 * input.microbatches.size();
  Roots roots;
  if (above.defined()) roots.add(r.h, above);
  roots.add(r.loss_sum, input, token);
  roots.add(r.mtp_sum, input, token);
  for (const MoeLoss& loss : r.losses) roots.add(loss.value, input, aux);
  return roots;
}

// The gradients of `wanted`, undefined for what the roots do not depend on.
std::vector<at::Tensor> gradients_of(const Roots& roots, const std::vector<at::Tensor>& wanted) {
  if (roots.values.empty() || wanted.empty()) return std::vector<at::Tensor>(wanted.size());
  return torch::autograd::grad(roots.values, wanted, roots.gradients, std::nullopt,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

// Adds what a unit made of one microbatch to the step's output.
void collect(StepOutput& out, const Action& action, const UnitResult& result,
             const StepInput& input) {
  const at::NoGradGuard no_grad;
  const auto m = static_cast<size_t>(action.microbatch);
  const bool counts = input.counts_terms && input.microbatches[m].ids_BS.numel() > 0;
  const size_t factor = input.microbatches.size() + m;
  const auto add = [&](at::Tensor& sum, std::vector<at::Tensor>& all, const at::Tensor& x) {
    if (!x.defined()) return;
    add_to(sum, x, input, factor);
    if (input.apart) add_to(all.emplace_back(), x, input, factor);
  };
  add(out.loss, out.losses, result.loss_sum);
  add(out.mtp, out.mtps, result.mtp_sum);
  if (result.ce_sum.defined()) add_to(out.ce, result.ce_sum, input, factor);
  if (result.kl_sum.defined()) add_to(out.kl, result.kl_sum, input, factor);
  if (result.rewards_3.defined()) add_to(out.rewards_3, result.rewards_3, input, factor);
  for (const MoeLoss& loss : result.losses) {
    add_to(out.aux[loss.name], loss.value / loss.coefficient, 1.);
    out.aux_terms[loss.name] += counts;
  }
  for (const LayerChoices& c : result.choices) {
    if (!input.keep_choices) break;
    out.choices.push_back({c.layer, c.ids_TK, c.logits_TE, action.microbatch});
  }
  std::vector<MoeStats>& own = out.moe[action.chunk];
  own.resize(std::max(own.size(), result.stats.size()));
  for (size_t i = 0; i < result.stats.size(); ++i) {
    own[i].counts_E.defined() ? void(own[i] += result.stats[i]) : void(own[i] = result.stats[i]);
  }
  if (own.empty()) out.moe.erase(action.chunk);
}

}  // namespace

std::vector<double> step_numbers(const StepInput& input) {
  std::vector<double> out;
  for (const double factor : input.factors) out.push_back(input.loss_scale * factor);
  out.insert(out.end(), input.factors.begin(), input.factors.end());
  out.push_back(input.loss_scale / static_cast<double>(input.all_microbatches));
  return out;
}

Batch head_batch(const StepInput& input, int64_t microbatch) {
  Batch out = input.microbatches[static_cast<size_t>(microbatch)];
  if (input.teacher) out.soft = input.teacher(out);
  if (!input.preferences.empty()) {
    out.preference = input.preferences.at(static_cast<size_t>(microbatch));
  }
  return out;
}

Executor::Executor(Model& model, ParamStore& store, const Faults& faults,
                   const std::vector<int>& owners, Pulse& pulse,
                   std::shared_ptr<StageChannels> channels)
    : model_(model),
      store_(store),
      faults_(faults),
      params_(model, store, owners),
      values_(model, store.options(), faults, pulse, std::move(channels)),
      pulse_(pulse) {}

PhaseTimer Executor::timed(Phase phase, double PhaseSeconds::*part, int unit, int microbatch) {
  const PhaseTimer::Place place{.unit = unit,
                                .units = static_cast<int>(model_.num_units()),
                                .microbatch = values_.microbatches() > 1 ? microbatch : -1};
  return {pulse_, phase, seconds_, part, place};
}

void Executor::offload(std::set<int> units, std::unique_ptr<ActivationOffload> to) {
  offloaded_ = std::move(units);
  offload_ = offloaded_.empty() ? nullptr : std::move(to);
}

void Executor::find_next_backwards(const std::vector<Action>& list) {
  next_backward_.clear();
  const Action* before = nullptr;
  for (const Action& action : list) {
    if (action.kind != Kind::kBackward && action.kind != Kind::kBackwardInput) continue;
    if (before != nullptr) {
      next_backward_[{before->chunk, before->microbatch}] = {action.chunk, action.microbatch};
    }
    before = &action;
  }
}

void Executor::offload_behind(const Action& forward) {
  offload_->settle();
  const Cell cell{forward.chunk, forward.microbatch};
  const auto found = forward_states_.find(cell);
  if (!offloaded_.contains(forward.chunk) || found == forward_states_.end()) return;
  const UnitResult& r = found->second.result;
  TensorList roots = {r.h, r.loss_sum, r.mtp_sum};
  for (const MoeLoss& loss : r.losses) roots.push_back(loss.value);
  offload_->send(cell, roots);
}

StepOutput Executor::run(const std::vector<Action>& list, const StepInput& input,
                         const Handlers& handlers) {
  out_ = {};
  seconds_ = {};
  store_.gradients().begin_step();
  std::vector<int64_t> own;
  for (const Batch& batch : input.microbatches) {
    own.push_back(model_.tokens().own(batch.ids_BS.numel()).count);
  }
  const PassKind kind = input.context.budgeted ? PassKind::kStep : PassKind::kStepWithoutBudget;
  values_.begin(std::move(own), {.kind = handlers.gradient ? PassKind::kOther : kind,
                                 .training = input.context.training,
                                 .step = input.context.step});
  step_ = input.context.step;
  for (const Action& action : list) {
    if (action.kind == Kind::kBackwardInput) halved_.insert({action.chunk, action.microbatch});
  }
  if (offload_) find_next_backwards(list);
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    if (action.beside) {
      compute_both(action, list.at(++i), input, handlers);
      continue;
    }
    if (moves(action)) continue;
    switch (action.kind) {
      case Kind::kReduce: reduce(action, input); break;
      case Kind::kUpdate: update(action, handlers); break;
      case Kind::kSnapshot:
        if (handlers.snapshot) handlers.snapshot();
        break;
      default: compute(action, input, handlers);
    }
  }
  const int64_t left = kept();
  offloaded_bytes_ = offload_ ? offload_->sent_bytes() : 0;
  end();
  TROUPE_CHECK(left == 0, left, "outputs, gradients and graphs are left of a step that has ended");
  return std::exchange(out_, {});
}

void Executor::compute(const Action& action, const StepInput& input, const Handlers& handlers) {
  switch (action.kind) {
    case Kind::kForwardLight:
    case Kind::kForward:
      forward(action, input, action.kind == Kind::kForwardLight);
      if (offload_) offload_behind(action);
      return;
    case Kind::kBackward:
    case Kind::kBackwardInput: return backward(action, input, handlers);
    case Kind::kBackwardWeight: return backward_weight(action, handlers);
    default: TROUPE_CHECK(false, "there is no handler for", to_text(action.kind));
  }
}

// The time of both is that of a backward: neither has one of its own.
void Executor::compute_both(const Action& back, const Action& ahead, const StepInput& input,
                            const Handlers& handlers) {
  const auto run = [&](const Action& action) { return [&] { compute(action, input, handlers); }; };
  if (!handlers.both) {
    run(back)();
    return run(ahead)();
  }
  const PhaseTimer timer = timed(Phase::kBackward, &PhaseSeconds::backward, back.chunk);
  const StepSeconds before = seconds_;
  handlers.both(run(back), run(ahead));
  seconds_ = before;
}

void Executor::pass(const std::vector<Action>& list, const std::vector<int64_t>& tokens,
                    const UnitFunction& f, PassKind kind, bool training) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> own;
  for (const int64_t all : tokens) own.push_back(model_.tokens().own(all).count);
  values_.begin(std::move(own), {kind, training, pulse_.now().done});
  for (const Action& action : list) {
    if (moves(action)) continue;
    TROUPE_CHECK(action.kind == Kind::kForwardLight, "-", to_text(action.kind),
                 "in a list of forwards alone");
    params_.need(action.chunk);
    const at::Tensor h = f(action.chunk, action.microbatch, values_.input_of(action));
    values_.drop_after(action, /*training=*/false);
    if (h.defined()) values_.set_output(action, h);
  }
  end();
}

void Executor::end() {
  values_.end();
  if (offload_) offload_->forget();
  forward_states_.clear();
  halved_.clear();
  late_.clear();
  light_.clear();
}

int64_t Executor::kept() const {
  return values_.kept() + std::ssize(forward_states_) + std::ssize(late_) + std::ssize(light_) +
         (offload_ ? offload_->waiting() : 0);
}

bool Executor::moves(const Action& action) {
  switch (action.kind) {
    case Kind::kGather: params_.gather(action.chunk); return true;
    case Kind::kFree: params_.drop(action.chunk); return true;
    case Kind::kSend: values_.send(action); return true;
    case Kind::kRecv: values_.receive(action); return true;
    default: return false;
  }
}

void Executor::reduce(const Action& action, const StepInput& input) {
  const PhaseTimer timer = timed(Phase::kReduce, &PhaseSeconds::reduce, action.chunk);
  faults_.at("reduce", input.context.step);
  const bool last =
      action.microbatch < 0 || action.microbatch + 1 == static_cast<int>(input.microbatches.size());
  params_.reduce(action.chunk, last);
}

void Executor::update(const Action& action, const Handlers& handlers) {
  const PhaseTimer timer = timed(Phase::kOptim, &PhaseSeconds::update, action.chunk);
  StepGradients& gradients = store_.gradients();
  if (action.chunk < 0) {
    gradients.end_step();
    if (handlers.update) handlers.update(out_);
    return;
  }
  const std::vector<int64_t>& buckets = params_.buckets_of(action.chunk);
  gradients.settle(buckets);
  if (handlers.update_unit) handlers.update_unit(buckets, out_);
  gradients.release(buckets);
}

void Executor::forward(const Action& action, const StepInput& input, bool light) {
  const PhaseTimer timer =
      timed(Phase::kForward, &PhaseSeconds::forward, action.chunk, action.microbatch);
  params_.need(action.chunk);
  const Cell cell{action.chunk, action.microbatch};
  const bool head = action.chunk + 1 == model_.num_units();
  const Batch batch = head ? head_batch(input, action.microbatch)
                           : input.microbatches[static_cast<size_t>(action.microbatch)];
  Context context = input.context;
  context.owns_backward = !light;
  context.first_token = input.first_token + action.microbatch * whole_tokens(input.microbatches[0]);
  at::Tensor h = values_.input_of(action);
  const at::AutoGradMode graph(!light);
  if (!light && h.defined()) h = h.detach().set_requires_grad(true);
  const bool halves = !light && (halved_.contains(cell) || input.apart);
  const auto late = halves ? std::make_shared<LateQueue>() : nullptr;
  UnitResult result;
  {
    const LateScope scope(late);
    result = model_.forward(action.chunk, h, batch, context);
  }
  const FaultAction fault = faults_.at("forward." + std::to_string(action.chunk), context.step);
  if (fault != FaultAction::kNone) {
    at::Tensor& value = result.h.defined() ? result.h : result.loss_sum;
    value = spoiled(value, fault);
  }
  // A second forward, just before the backward, makes what the next unit had long ago.
  const bool again = !light && light_.erase(cell) > 0;
  if (result.h.defined() && !again) values_.set_output(action, result.h);
  if (light) light_.insert(cell);
  if (light) return;
  collect(out_, action, result, input);
  forward_states_[cell] = {h, std::move(result), late};
}

void Executor::backward(const Action& action, const StepInput& input, const Handlers& handlers) {
  const PhaseTimer timer =
      timed(Phase::kBackward, &PhaseSeconds::backward, action.chunk, action.microbatch);
  const Cell cell{action.chunk, action.microbatch};
  ForwardState forward_state = std::move(forward_states_.at(cell));
  forward_states_.erase(cell);
  const auto& params = params_.at(action.chunk);
  const UnitResult& r = forward_state.result;
  params_.need(action.chunk);
  if (offload_) {
    offload_->need(cell);
    const auto next = next_backward_.find(cell);
    if (next != next_backward_.end()) offload_->fetch(next->second);
  }
  const Roots roots = roots_of(action, r, values_.gradient_of_output(action), input);
  std::vector<at::Tensor> wanted;
  if (forward_state.input.defined()) wanted.push_back(forward_state.input);
  for (const auto& [slot, p] : params) wanted.push_back(p->value);
  std::vector<at::Tensor> grads = gradients_of(roots, wanted);
  const FaultAction fault =
      faults_.at("backward." + std::to_string(action.chunk), input.context.step);
  size_t at = 0;
  if (forward_state.input.defined()) values_.set_input_gradient(action, grads[at++]);
  for (const auto& [slot, p] : params) {
    const at::Tensor made = std::move(grads[at++]);  // gone once it is added
    const at::Tensor gradient = spoiled(made, fault);
    if (handlers.gradient && gradient.defined()) handlers.gradient(action, slot, gradient);
    store_.gradients().add(slot, gradient);
  }
  values_.drop_after(action, /*training=*/true);
  if (action.kind == Kind::kBackwardInput) {
    late_[cell] = std::move(forward_state.late);
  } else if (forward_state.late) {
    add_late(*forward_state.late, action, handlers);
  }
}

void Executor::backward_weight(const Action& action, const Handlers& handlers) {
  const PhaseTimer timer =
      timed(Phase::kLate, &PhaseSeconds::backward, action.chunk, action.microbatch);
  faults_.at("late", step_);
  const auto found = late_.find({action.chunk, action.microbatch});
  params_.need(action.chunk);
  add_late(*found->second, action, handlers);
  late_.erase(found);
}

void Executor::add_late(LateQueue& late, const Action& action, const Handlers& handlers) {
  std::map<const at::TensorImpl*, int64_t> slots;
  for (const auto& [slot, p] : params_.at(action.chunk)) {
    slots[p->value.unsafeGetTensorImpl()] = slot;
  }
  late.run([&](const at::Tensor& parameter, const at::Tensor& gradient) {
    const int64_t slot = slots.at(parameter.unsafeGetTensorImpl());
    if (handlers.gradient) handlers.gradient(action, slot, gradient);
    store_.gradients().add(slot, gradient);
  });
}

}  // namespace troupe
