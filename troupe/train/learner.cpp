#include "troupe/train/learner.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "troupe/ops/cuda_plugin.h"
#include "troupe/ops/grad_norm.h"
#include "troupe/schedule/schedules.h"

namespace troupe {
namespace {

Precision resolved(Precision asked, const c10::Device& device) {
  if (asked != Precision::kAuto) return asked;
  return device.is_cpu() ? Precision::kFp32 : Precision::kBf16;
}

at::ScalarType type_of(Precision precision) {
  if (precision == Precision::kFp32) return at::kFloat;
  return precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf;
}

std::string unit_name(int64_t unit, int64_t units) {
  if (unit == 0) return "the embedding";
  return unit == units - 1 ? "the output head" : "layer " + std::to_string(unit - 1);
}

// Two runs are equal bit for bit (rule G4). On a GPU that asks it of PyTorch's own operators too:
// of cuBLAS, and of flash attention's backward. Its habit of filling fresh memory meanwhile is no
// part of that, and would cost a pass over each tensor.
void make_deterministic(const c10::Device& device) {
  if (device.is_cpu()) return;
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace

c10::Device device_of(DeviceKind kind) {
  const bool there = has_cuda();
  if (kind == DeviceKind::kCuda && !there) {
    fail(Code::kNoDevice, "run.device",
         "cuda is asked for, and no CUDA device with a driver is here. With run.device=cpu the "
         "recipe runs on the processor");
  }
  if (!there || kind == DeviceKind::kCpu) return {c10::kCPU};
  return {c10::kCUDA, 0};
}

Learner::Learner(const Recipe& recipe, const c10::Device& device, const Faults& faults)
    : recipe_(recipe),
      plan_(plan_of(recipe)),
      device_(device),
      precision_(resolved(recipe.train.precision, device)),
      faults_(faults),
      model_(build_model(recipe.model)) {
  make_deterministic(device_);
  const OptimizerBase& base = base_of(recipe_.train.optimizer);
  std::vector<NamedParam> params;
  model_->for_each_param(-1, [&](const std::string& name, Param& p) {
    p.frozen |= is_frozen(base, name);
    params.push_back({name, &p});
  });
  store_ = std::make_unique<ParamStore>(
      std::move(params), at::TensorOptions(type_of(precision_)).device(device_),
      [&](const NamedParam& named) { return bucket_key(base, named); });
  store_->initialise_all(recipe_.train.seed);
  optimizer_ = std::visit([](const auto& c) { return c.build(); }, recipe_.train.optimizer);
  const at::ScalarType moments = base.moments == MomentType::kF32 ? at::kFloat : at::kBFloat16;
  for (Bucket& b : store_->buckets()) {
    for (size_t i = 0; i < optimizer_->state_names(b).size(); ++i) {
      b.state.push_back(at::zeros({b.size}, b.master.options().dtype(moments)));
    }
  }
  executor_ = std::make_unique<Executor>(*model_, *store_, faults_);
  const std::vector<bool> again = recomputed_blocks(recipe_);
  for (size_t layer = 0; layer < again.size(); ++layer) {
    if (again[layer]) recomputed_.push_back(static_cast<int>(layer) + 1);
  }
}

StepInput Learner::input_of(const Feed& feed, const TrainState& state) const {
  StepInput out{.microbatches = feed.microbatches,
                .weight_sum = feed.weight_sum > 0 ? feed.weight_sum : 1,
                .loss_scale = precision_ == Precision::kFp16 ? state.loss_scale.scale : 1};
  out.context.training = true;
  out.context.seed = recipe_.train.seed;
  out.context.step = state.done.steps;
  return out;
}

StepReport Learner::step(const Feed& feed, TrainState& state) {
  StepReport report;
  const int microbatches = static_cast<int>(feed.microbatches.size());
  Schedule& schedule = schedules_[microbatches];
  if (schedule.empty()) {
    schedule = build_schedule(Accumulate{}, {.chunks = static_cast<int>(model_->num_units()),
                                             .microbatches = microbatches,
                                             .recomputed = recomputed_});
  }
  const StepInput input = input_of(feed, state);
  report.output = executor_->run(schedule[0], input, {.update = [&](const StepOutput& output) {
                                   update(output, feed, state, report);
                                 }});
  report.seconds = executor_->seconds();
  if (!report.finite && precision_ != Precision::kFp16) report.first_bad = first_bad(feed, state);
  model_->end_of_step({}, report.skipped);
  ++state.done.steps;
  state.done.samples += feed.samples;
  state.done.tokens += feed.tokens;
  state.loss_tokens += feed.loss_tokens;
  return report;
}

void Learner::update(const StepOutput& output, const Feed& feed, TrainState& state,
                     StepReport& report) {
  const at::NoGradGuard no_grad;
  const double unscale = precision_ == Precision::kFp16 ? 1 / state.loss_scale.scale : 1;
  const double clip =
      recipe_.train.clip > 0 ? recipe_.train.clip : std::numeric_limits<double>::infinity();
  const auto [scale, norm] = clip_scale(sum_squares(store_->grads()) * (unscale * unscale), clip);
  const at::Tensor mtp =
      output.mtp_sum.defined() ? output.mtp_sum : at::zeros({}, output.loss_sum.options());
  const at::Tensor seen = at::stack({output.loss_sum, mtp, norm.to(at::kDouble).squeeze(0)}).cpu();
  const auto* const values = seen.const_data_ptr<double>();
  const double weight = feed.weight_sum > 0 ? feed.weight_sum : 1;
  report.loss = values[0] / weight;
  report.mtp_loss = values[1] / weight;
  report.grad_norm = values[2];
  report.finite = std::isfinite(report.loss) && std::isfinite(report.grad_norm);
  if (precision_ == Precision::kFp16) {
    troupe::update(state.loss_scale, recipe_.train.loss_scale, !report.finite);
  }
  if (report.finite) {
    report.spike = judge(state.spike, recipe_.train.spike, report.loss, report.grad_norm);
  }
  report.skipped = !report.finite || (recipe_.train.spike.skip && !report.spike.empty());
  apply(state, report, scale * unscale);
  if (report.skipped) {
    ++state.skipped;
    ++state.skipped_now;
    state.nonfinite += !report.finite;
  } else {
    ++state.updates;
    state.skipped_now = 0;
  }
}

void Learner::apply(const TrainState& state, StepReport& report, const at::Tensor& grad_scale) {
  const OptimizerBase& base = base_of(recipe_.train.optimizer);
  const int64_t step = state.done.steps;
  const int64_t batch = batch_at(recipe_.train.batch_ramp, plan_.batch, state.done.samples);
  Position after = state.done;
  ++after.steps;
  after.samples += batch;
  after.tokens += batch * recipe_.data.sequence;
  report.lr = base.lr * lr_factor(recipe_.train.schedule, state.done, after, plan_.run);
  report.weight_decay = ramped(base.weight_decay, base.weight_decay_end.value_or(base.weight_decay),
                               base.weight_decay_form, step, plan_.run.steps);
  if (report.skipped) return;
  for (Bucket& b : store_->buckets()) {
    optimizer_->update(*store_, b,
                       {.step = state.updates + 1,
                        .lr = report.lr * b.key.lr_scale,
                        .weight_decay = b.key.decay ? report.weight_decay : 0,
                        .grad_scale = grad_scale});
  }
  const FaultAction fault = faults_.at("optim", step);
  if (fault == FaultAction::kNan || fault == FaultAction::kInf) {
    store_->buckets()[0].master.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    store_->values_from_masters();
  }
}

// In the order in which a step computes: weights, forward, gradients from the head down.
std::string Learner::first_bad(const Feed& feed, const TrainState& state) {
  const auto told = [](const BadValue& bad) {
    return bad.name + ", " + std::to_string(bad.bad) + " of " + std::to_string(bad.of) + " values";
  };
  const auto weights = bad_values(*store_, &Bucket::value);
  if (!weights.empty()) return "weight " + told(weights.front());
  const auto gradients = bad_gradients(*store_);
  const std::string unit = first_bad_unit(feed, state);
  if (!unit.empty()) return "forward of " + unit + " (replayed: the same)";
  if (gradients.empty()) return "the loss; replayed, its forward is finite: a passing fault";
  return "gradient of " + told(gradients.back()) +
         (gradients_are_bad_again(feed, state) ? " (replayed: the same; its forward is finite)"
                                               : "; replayed, it is finite: a passing fault");
}

bool Learner::gradients_are_bad_again(const Feed& feed, const TrainState& state) {
  const Schedule& schedule = schedules_.at(static_cast<int>(feed.microbatches.size()));
  executor_->run(schedule[0], input_of(feed, state), {.update = [](const StepOutput&) {}});
  return !bad_gradients(*store_).empty();
}

std::string Learner::first_bad_unit(const Feed& feed, const TrainState& state) {
  const at::NoGradGuard no_grad;
  Context context = input_of(feed, state).context;
  context.owns_backward = false;  // counts nothing a second time
  for (size_t m = 0; m < feed.microbatches.size(); ++m) {
    const Batch& batch = feed.microbatches[m];
    context.first_token = static_cast<int64_t>(m) * batch.ids_BS.numel();
    at::Tensor h;
    for (int64_t unit = 0; unit < model_->num_units(); ++unit) {
      const UnitResult r = model_->forward(unit, h, batch, context);
      h = r.h;
      const at::Tensor& value = h.defined() ? h : r.loss_sum;
      if (at::isfinite(value).all().item<bool>()) continue;
      return unit_name(unit, model_->num_units()) + ", microbatch " + std::to_string(m);
    }
  }
  return {};
}

Learner::Sums Learner::evaluate(const Feed& feed) {
  const at::NoGradGuard no_grad;
  Sums out;
  for (const Batch& batch : feed.microbatches) {
    at::Tensor h;
    for (int64_t unit = 0; unit < model_->num_units(); ++unit) {
      const UnitResult r = model_->forward(unit, h, batch, {});
      h = r.h;
      if (r.loss_sum.defined()) out.loss += r.loss_sum.item<double>();
    }
  }
  out.weight = feed.weight_sum;
  return out;
}

at::Tensor Learner::next_logits(const at::Tensor& ids_1S) {
  const at::NoGradGuard no_grad;
  const Batch batch{.ids_BS = ids_1S};
  const at::Tensor h = hidden_states(*model_, batch);
  return model_->logits(h.narrow(1, h.size(1) - 1, 1)).view(-1).to(at::kFloat);
}

void Learner::add_to(CheckpointState& state, bool weights_alone) {
  for (size_t s = 0; s < store_->slots().size(); ++s) {
    const ParamStore::Slot& slot = store_->slots()[s];
    const Bucket& b = store_->buckets()[static_cast<size_t>(slot.bucket)];
    const auto part = [&](const at::Tensor& buffer) {
      return store_->part(static_cast<int64_t>(s), buffer);
    };
    state.add_like("model." + slot.named.name, *slot.named.param, part(b.master));
    if (weights_alone) continue;
    const std::vector<std::string> names = optimizer_->state_names(b);
    for (size_t i = 0; i < names.size(); ++i) {
      state.add_like("optimizer." + names[i] + '.' + slot.named.name, *slot.named.param,
                     part(b.state[i]));
    }
  }
  for (const NamedParam& other : store_->others()) state.add("model." + other.name, *other.param);
}

void Learner::loaded(bool weights_alone) {
  store_->values_from_masters();
  if (!weights_alone) return;
  for (Bucket& b : store_->buckets()) {
    for (at::Tensor& x : b.state) x.zero_();
  }
}

}  // namespace troupe
