#include "troupe/train/step/step_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "troupe/core/check.h"
#include "troupe/ops/grad_norm.h"
#include "troupe/train/layout/expert_dispatch.h"
#include "troupe/train/params/exact_gradients.h"

namespace troupe {
namespace {

// Of numbers(): before the constants of buckets.
constexpr int64_t kLimits = 1, kConstants = 3;
// Of Measured::seen. A teacher's parts of the loss, or rewards, are the extras; votes stand behind.
enum Seen { kLoss, kMtpLoss, kNorm, kLost, kMissed, kExtras };

at::TensorOptions f64_on(const c10::Device& device) {
  return at::TensorOptions(at::kDouble).device(device);
}

// The rows over their budgets (C7) that this rank lost in the step: f64 scalar.
at::Tensor lost_rows_of(Model& model, const c10::Device& device) {
  at::Tensor all = at::zeros({}, f64_on(device));
  model.for_each_moe([&](int64_t, MoeLayer& moe) {
    const at::Tensor lost = moe.lost_rows();
    if (lost.defined()) all += lost.to(all.options());
  });
  return all;
}

// Does to the first weight what an injected fault asks for.
void spoil_first(ParamStore& store, FaultAction fault) {
  if (store.buckets().empty()) return;  // all is frozen
  const Bucket& first = store.buckets()[0];
  const at::Tensor master = first.masters()[0];
  if (fault == FaultAction::kFlip) master.narrow(0, 0, 1).neg_();  // a bit
  if (fault == FaultAction::kNan || fault == FaultAction::kInf) {
    for (const at::Tensor& x : {master, first.own}) {
      x.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
}

}  // namespace

StepUpdate::Rates StepUpdate::rates(const Position& done) const {
  const ResolvedRun& recipe = run_.recipe;
  const OptimizerBase& base = base_of(recipe.train.optimizer);
  const int64_t batch = batch_at(recipe.train.batch_ramp, recipe.plan.batch, done.samples);
  Position after = done;
  ++after.steps;
  after.samples += batch;
  after.tokens += batch * recipe.data.sequence;
  return {base.lr * lr_factor(recipe.train.schedule, done, after, recipe.plan.run),
          ramped(base.weight_decay, base.weight_decay_end.value_or(base.weight_decay),
                 base.weight_decay_form, done.steps, recipe.plan.run.steps)};
}

double StepUpdate::unscale(const TrainState& state) const {
  return run_.precision == Precision::kFp16 ? 1 / state.loss_scale.scale : 1;
}

UpdateStep StepUpdate::step_of(const Bucket& b, const TrainState& state, const Rates& rates,
                               const at::Tensor& scale) const {
  UpdateStep out;
  out.grad_scale = scale;
  out.step = state.updates + 1;
  out.lr = rates.lr * b.key.lr_scale;
  out.weight_decay = b.key.decay ? rates.weight_decay : 0;
  return out;
}

void StepUpdate::run(const StepOutput& output, const std::vector<double>& votes, TrainState& state,
                     StepReport& report) {
  const at::NoGradGuard no_grad;
  const double factor = unscale(state);
  const bool by_last = run_.recipe.train.clip_by == ClipBy::kLastStep;
  const at::Tensor last = by_last ? last_scale(state) : at::Tensor();
  if (run_.units != nullptr) report.units_updated = run_.units->updated();
  const Measured found = measured(output, at::scalar_tensor(factor, at::kDouble), votes);
  if (run_.stream != nullptr && run_.units != nullptr) run_.stream->finish();
  if (!judge(found.seen.cpu(), state, report)) return;
  if (!report.skipped) {
    const Rates now{report.lr, report.weight_decay};
    if (run_.units == nullptr) update_all(now, (by_last ? last : found.scale) * factor, state);
    spoil_first(run_.store, run_.faults.at("optim", state.done.steps));
  }
  count(state, report);
}

void StepUpdate::update_bucket(Bucket& b, const UpdateStep& step) {
  run_.optimizer.update(run_.store, b, step);
  b.stale = true;
}

void StepUpdate::update_all(const Rates& rates, const at::Tensor& scale, const TrainState& state) {
  const auto step_on = [&](const Bucket& b) { return step_of(b, state, rates, scale); };
  if (run_.stream != nullptr) {
    return run_.stream->update(run_.store, run_.optimizer, step_on);
  }
  for (Bucket& b : run_.store.buckets()) update_bucket(b, step_on(b));
}

// Of gradients, by the norm that was last finite; 1: there is none, or nothing clips.
at::Tensor StepUpdate::last_scale(const TrainState& state) const {
  const double clip = run_.recipe.train.clip, norm = state.last_norm;
  const at::Tensor squares = at::full({1}, norm * norm, f64_on(run_.store.options().device()));
  return clip_scale(squares, clip > 0 ? clip : std::numeric_limits<double>::infinity()).first;
}

void StepUpdate::run_unit(const std::vector<int64_t>& buckets, const StepOutput& output,
                          const TrainState& state) {
  const at::NoGradGuard no_grad;
  ParamStore& store = run_.store;
  std::vector<at::Tensor> held;
  for (const int64_t i : buckets) {
    for (const int64_t slot : store.buckets()[static_cast<size_t>(i)].members) {
      held.push_back(store.gradients().of(slot));
    }
  }
  const at::Tensor scale = last_scale(state);
  const auto step_on = [&, now = rates(state.done)](const Bucket& b) {
    return step_of(b, state, now, scale);
  };
  const auto update = [&] {
    if (run_.stream != nullptr) return run_.stream->issue(store, run_.optimizer, buckets, step_on);
    for (const int64_t i : buckets) {
      Bucket& b = store.buckets()[static_cast<size_t>(i)];
      update_bucket(b, step_on(b));
    }
  };
  held.push_back(scale);
  const SumOver sum = run_.setup.state.sum_over_all();
  run_.units->run(
      store.gradients(), buckets, held, output.loss,
      [&](const at::Tensor& parts) { return summed(sum, parts); }, update);
}

at::Tensor StepUpdate::squares_of_step() {
  if (run_.units != nullptr) return run_.units->end_step();
  return sum_squares(run_.store.gradients().counted());
}

// Of all ranks, f64: loss, MTP loss and the squares of the norm, with the bits of one process.
at::Tensor StepUpdate::sum_exactly(const StepOutput& output) {
  const StepGradients& gradients = run_.store.gradients();
  std::array<ExactSum, 3> sums;
  for (const at::Tensor& loss : output.losses) sums[kLoss].add(loss.item<double>());
  for (const at::Tensor& loss : output.mtps) sums[kMtpLoss].add(loss.item<double>());
  sums[kNorm] = exact_squares(gradients.counted());
  if (!gradients.all_fit()) sums[kNorm].add(std::numeric_limits<double>::quiet_NaN());
  std::vector<int64_t> words;
  for (const ExactSum& sum : sums) {
    const ExactSum::Words own = sum.carried();
    words.insert(words.end(), own.begin(), own.end());
  }
  const at::Tensor all = summed(run_.setup.state.sum_over_all(), at::tensor(words, at::kLong));
  std::vector<double> out;
  for (size_t i = 0; i < sums.size(); ++i) {
    ExactSum::Words own;
    std::copy_n(all.const_data_ptr<int64_t>() + i * own.size(), own.size(), own.begin());
    out.push_back(ExactSum(own).value());
  }
  return at::tensor(out, at::kDouble);
}

StepUpdate::Measured StepUpdate::measured(const StepOutput& output, const at::Tensor& factor,
                                          const std::vector<double>& votes) {
  const c10::Device device = run_.store.options().device();
  const double clip = run_.recipe.train.clip;
  const at::Tensor none = at::zeros({}, f64_on(device));  // the rank that has the head made them
  const bool exact = run_.store.gradients().exact();
  const at::Tensor squares = exact ? none.unsqueeze(0) : squares_of_step().to(device);
  // One sum over all ranks decides for all of them: what is not finite anywhere is so everywhere.
  const auto here = [&](const at::Tensor& sum) { return sum.defined() ? sum : none; };
  std::vector<at::Tensor> own = {
      here(output.loss), here(output.mtp), (squares * (factor * factor)).squeeze(0),
      lost_rows_of(run_.model, device), missed_rows(run_.setup.experts, device)};
  if (taught()) own.insert(own.end(), {here(output.ce), here(output.kl)});
  at::Tensor parts = at::stack(own);
  if (prefers()) {
    const at::Tensor& rewards = output.rewards_3;
    parts = at::cat({parts, rewards.defined() ? rewards : at::zeros({3}, f64_on(device))});
  }
  if (!votes.empty()) parts = at::cat({parts, at::tensor(votes, at::kDouble).to(device)});
  const at::Tensor sums = summed(run_.setup.state.sum_over_all(), parts).clone();
  if (exact) sums.narrow(0, kLoss, kNorm + 1).copy_(sum_exactly(output));
  const auto [scale, norm_f32] = clip_scale(
      sums.narrow(0, kNorm, 1), clip > 0 ? clip : std::numeric_limits<double>::infinity());
  const at::Tensor norm = run_.precision == Precision::kFp64 ? sums.narrow(0, kNorm, 1).sqrt()
                                                             : norm_f32.to(at::kDouble);
  return {at::cat({sums.narrow(0, 0, kNorm), norm, sums.narrow(0, kLost, sums.size(0) - kLost)}),
          scale};
}

bool StepUpdate::judge(const at::Tensor& seen, TrainState& state, StepReport& report) const {
  const auto* const values = seen.const_data_ptr<double>();
  const TrainConfig& train = run_.recipe.train;
  require_rows(run_.setup.experts, values[kMissed]);
  if (values[kLost] > 0) {
    report.lost_rows = static_cast<int64_t>(values[kLost]);
    return false;
  }
  report.votes.assign(values + kExtras + extras(), values + seen.numel());
  if (taught()) {
    report.ce = values[kExtras];
    report.kl = values[kExtras + 1];
  }
  if (prefers()) {
    report.rewards = {.chosen = values[kExtras],
                      .rejected = values[kExtras + 1],
                      .accuracy = values[kExtras + 2]};
  }
  report.loss = values[kLoss];
  report.mtp_loss = values[kMtpLoss];
  report.grad_norm = values[kNorm];
  report.finite = std::isfinite(report.loss) && std::isfinite(report.grad_norm);
  if (report.finite) state.last_norm = report.grad_norm;
  if (run_.precision == Precision::kFp16) {
    troupe::update(state.loss_scale, train.loss_scale, !report.finite);
  }
  if (report.finite) {
    report.spike = troupe::judge(state.spike, train.spike, report.loss, report.grad_norm);
  }
  report.skipped = !report.finite || (train.spike.skip && !report.spike.empty());
  const Rates now = rates(state.done);
  report.lr = now.lr;
  report.weight_decay = now.weight_decay;
  return true;
}

void StepUpdate::count(TrainState& state, const StepReport& report) {
  if (report.skipped) {
    ++state.skipped;
    ++state.skipped_now;
    state.nonfinite += !report.finite;
  } else {
    ++state.updates;
    state.skipped_now = 0;
  }
}

std::vector<double> StepUpdate::numbers(const TrainState& state) const {
  const SpikeConfig& spike = run_.recipe.train.spike;
  const SpikeLimits limits = spike.skip ? limits_of(state.spike, spike) : SpikeLimits{};
  std::vector<double> out = {unscale(state), limits.loss, limits.norm};
  const Rates now = rates(state.done);
  for (const Bucket& b : run_.store.buckets()) {
    const std::vector<float> own = run_.optimizer.constants(step_of(b, state, now));
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

StepUpdate::Measured StepUpdate::measure(const StepOutput& output, const at::Tensor& numbers) {
  TROUPE_CHECK(run_.setup.state.alone(), "an update in a graph is one rank's");
  const at::NoGradGuard no_grad;
  return measured(output, numbers[0], {});
}

void StepUpdate::apply(const Measured& measured, const at::Tensor& numbers) {
  const at::NoGradGuard no_grad;
  std::vector<Bucket>& buckets = run_.store.buckets();
  if (buckets.empty()) return;  // all is frozen
  const at::Tensor judged = at::stack({measured.seen[kLoss], measured.seen[kNorm]});
  const at::Tensor limits = numbers.narrow(0, kLimits, judged.size(0));
  const at::Tensor good = at::isfinite(judged).all() & (judged <= limits).all();
  const at::Tensor scale =
      at::where(good, measured.scale * numbers[0], std::numeric_limits<double>::quiet_NaN());
  const at::Tensor constants = numbers.narrow(0, kConstants, numbers.size(0) - kConstants)
                                   .to(at::kFloat)
                                   .view({std::ssize(buckets), -1});
  for (int64_t i = 0; i < std::ssize(buckets); ++i) {
    UpdateStep step;
    step.grad_scale = scale;
    step.constants = constants[i];
    run_.optimizer.update(run_.store, buckets[static_cast<size_t>(i)], step);
  }
}

void StepUpdate::learn(const at::Tensor& seen, const std::vector<double>& votes, TrainState& state,
                       StepReport& report) {
  if (!judge(seen, state, report)) return;
  report.votes = votes;
  if (!report.skipped) {
    for (Bucket& b : run_.store.buckets()) b.stale = true;
  }
  count(state, report);
}

}  // namespace troupe
