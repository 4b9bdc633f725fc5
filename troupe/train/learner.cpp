#include "troupe/train/learner.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "troupe/core/number/moment8.h"
#include "troupe/nn/context_slice.h"
#include "troupe/ops/grad_norm.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/shared_gpu.h"
#include "troupe/ops/support/trial_kernels.h"
#include "troupe/train/expert_dispatch.h"
#include "troupe/train/forecast/step_work.h"
#include "troupe/train/optim/moments8.h"

namespace troupe {
namespace {

using Part = Executor::Handlers::Part;

// Runs a backward and a forward in turns (parallel.overlap); empty: there are none.
std::function<void(const Part& back, const Part& ahead)> both_of(
    const std::shared_ptr<Turns>& turns) {
  if (!turns) return {};
  return [turns](const Part& back, const Part& ahead) { turns->both(back, ahead); };
}

std::string described(const BadValue& bad) {
  return bad.name + ", " + std::to_string(bad.bad) + " of " + std::to_string(bad.of) + " values";
}

// Two runs are equal bit for bit (rule G4). On a GPU that asks it of PyTorch's own operators too:
// of cuBLAS, and of flash attention's backward. Its habit of filling fresh memory meanwhile is no
// part of that, and would cost a pass over each tensor. Attention is ours
// (ops/attention/attention_cudnn). What it does not take is PyTorch's: flash attention's repeatable
// backward, which PyTorch takes where an operator without one is an error and not where that is a
// warning, and never cuDNN's, which through PyTorch has none. With run.deterministic=false it may
// warn: all attention is PyTorch's fastest then.
void make_deterministic(bool attention) {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/!attention);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (attention) at::globalContext().setSDPUseCuDNN(false);
}

// Whether a parameter's values are in memory all the time, whole.
bool stays_whole(const ParamStore& store, const Param& p) {
  const int64_t slot = store.slot_of(&p);
  if (slot < 0) return true;
  const int64_t bucket = store.slots()[static_cast<size_t>(slot)].bucket;
  return !store.buckets()[static_cast<size_t>(bucket)].dropped_between_uses;
}

}  // namespace

Precision precision_on(const c10::Device& device, Precision asked) {
  if (asked != Precision::kAuto) return asked;
  return device.is_cpu() ? Precision::kFp32 : Precision::kBf16;
}

at::ScalarType type_of(Precision precision) {
  switch (precision) {
    case Precision::kFp64: return at::kDouble;
    case Precision::kBf16: return at::kBFloat16;
    case Precision::kFp16: return at::kHalf;
    default: return at::kFloat;
  }
}

Learner::Learner(const Recipe& recipe, const c10::Device& device, const Faults& faults,
                 std::shared_ptr<const ParallelSetup> setup)
    : recipe_(recipe),
      plan_(plan_of(recipe)),
      device_(device),
      precision_(precision_on(device, recipe.train.precision)),
      faults_(faults),
      model_(build_model(recipe.model, build_options(*setup, faults))),
      setup_(std::move(setup)) {
  if (recipe_.train.fp8) use_fp8(*recipe_.train.fp8, *model_);
  if (!device_.is_cpu()) {
    // What names no device, such as an allocation, is of this rank's too.
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
    make_deterministic(recipe.run.deterministic);
    set_shares_gpu(!setup_->state.alone());
    set_trial_kernels(recipe.run.trial_kernels);
  }
  work_ = step_work(recipe_, setup_->parallel());
  const std::map<std::string, int> first = first_readers(*model_);
  const OptimizerBase& base = base_of(recipe_.train.optimizer);
  std::vector<NamedParam> params;
  model_->for_each_param(-1, [&](const std::string& name, Param& p) {
    p.frozen |= is_frozen(base, name);
    params.push_back({name, &p, first.at(name)});
  });
  store_ = std::make_unique<ParamStore>(
      std::move(params), at::TensorOptions(type_of(precision_)).device(device_),
      [&](const NamedParam& named) { return bucket_key(base, named); }, setup_->sharing);
  store_->initialise_all(recipe_.train.seed);
  optimizer_ = std::visit([](const auto& c) { return c.build(); }, recipe_.train.optimizer);
  make_state(*optimizer_, base.moments, *store_);
  executor_ = std::make_unique<Executor>(*model_, *store_, faults_, owners(work_),
                                         setup_->state.world().pulse(), setup_->channels);
  const RebalanceConfig& rebalance = setup_->parallel().rebalance;
  if (rebalance.every > 0 && setup_->experts != nullptr) {
    std::vector<Rebalancer::Place> places;
    for (const MoeUnit& moe : moe_units(recipe_.model)) {
      places.push_back(
          {moe.unit, placement_of(setup_->parallel(), setup_->experts->size(), moe.config)});
    }
    rebalancer_ = std::make_unique<Rebalancer>(rebalance, *model_, places, *store_, setup_->experts,
                                               setup_->state.sum_over_all());
  }
}

StepInput Learner::input_of(const Feed& feed, const TrainState& state) const {
  for (const Batch& batch : feed.microbatches) {
    const int64_t cut = batch.slice ? batch.slice->ranks() : 1;
    TROUPE_CHECK(cut == setup_->parallel().context, "rows are cut over", cut,
                 "ranks, and the run's", "context is", setup_->parallel().context);
  }
  StepInput out{.microbatches = feed.microbatches,
                .factors = loss_factors(recipe_.train.loss_mean, feed.weights, feed.weight_sum,
                                        feed.all_microbatches),
                .loss_scale = precision_ == Precision::kFp16 ? state.loss_scale.scale : 1,
                .all_microbatches = feed.all_microbatches,
                .first_token = feed.first_token,
                .counts_terms = setup_->state.first_of_microbatch(),
                .keep_choices = feed.keep_choices};
  out.context.training = true;
  out.context.seed = recipe_.train.seed;
  out.context.step = state.done.steps;
  out.context.all_sum = setup_->state.sum_over_stage();
  out.context.replicas = setup_->state.data_ranks();
  return out;
}

const std::vector<Action>& Learner::list_of(int microbatches, bool training) {
  Schedule& schedule = schedules_[{training, microbatches}];
  if (schedule.empty()) {
    StepWork work = work_;
    work.microbatches = microbatches;
    work.training = training;
    work.replicas = static_cast<int>(setup_->state.size()) / setup_->state.stage_ranks();
    schedule = step_schedule(setup_->parallel(), work);
  }
  return schedule[static_cast<size_t>(setup_->state.stage_rank())];
}

StepReport Learner::step(const Feed& feed, TrainState& state, const Votes& votes) {
  StepReport report;
  report.tokens = feed.tokens;
  report.weight_sum = feed.weight_sum;
  const auto& list = list_of(static_cast<int>(feed.microbatches.size()));
  StepInput input = input_of(feed, state);
  std::vector<double> own;
  bool asked = false;
  const auto run = [&] {
    KeepsFp8Weights rounded(recipe_.train.fp8, *model_, feed.microbatches.size(),
                            [&](const Param& p) { return stays_whole(*store_, p); });
    const auto at_the_end = [&](const StepOutput& output) {
      rounded.forget();
      // Not asked again where a step is repeated.
      if (votes && !std::exchange(asked, true)) own = votes();
      update(output, state, own, report);
    };
    return executor_->run(list, input,
                          {.update = at_the_end, .gradient = {}, .both = both_of(setup_->turns)});
  };
  report.output = run();
  if (report.lost_rows > 0) {
    const SumOver sum = setup_->state.sum_over_stage();
    model_->for_each_moe([&](int64_t, MoeLayer& moe) { moe.forget_step(sum); });
    ++state.reruns;
    input.context.budgeted = false;
    report.output = run();
  }
  report.seconds = executor_->seconds();
  if (!report.finite && precision_ != Precision::kFp16) report.first_bad = first_bad(feed, state);
  model_->end_of_step(setup_->state.sum_over_stage(), report.skipped);
  ++state.done.steps;
  state.done.samples += feed.samples;
  state.done.tokens += feed.tokens;
  state.loss_tokens += feed.loss_tokens;
  if (rebalancer_) report.moved = rebalancer_->after_step(state.done.steps, report.output);
  return report;
}

void Learner::update(const StepOutput& output, TrainState& state, const std::vector<double>& votes,
                     StepReport& report) {
  const at::NoGradGuard no_grad;
  const double unscale = precision_ == Precision::kFp16 ? 1 / state.loss_scale.scale : 1;
  const double clip =
      recipe_.train.clip > 0 ? recipe_.train.clip : std::numeric_limits<double>::infinity();
  // The rank that has the head made them.
  const at::Tensor none = at::zeros({}, at::TensorOptions(at::kDouble).device(device_));
  const at::Tensor loss = output.loss.defined() ? output.loss : none;
  const at::Tensor mtp = output.mtp.defined() ? output.mtp : none;
  const at::Tensor squares = sum_squares(store_->counted_grads()).to(device_);
  // One sum over all ranks decides for all of them: what is not finite anywhere is so everywhere.
  const at::Tensor parts = at::stack({loss, mtp, (squares * (unscale * unscale)).squeeze(0),
                                      lost_rows(), missed_rows(setup_->experts, device_)});
  const at::Tensor sums = summed(setup_->state.sum_over_all(),
                                 at::cat({parts, at::tensor(votes, at::kDouble).to(device_)}));
  const auto [scale, norm_f32] = clip_scale(sums.narrow(0, 2, 1), clip);
  const at::Tensor norm =
      precision_ == Precision::kFp64 ? sums.narrow(0, 2, 1).sqrt() : norm_f32.to(at::kDouble);
  const at::Tensor seen =
      at::cat({sums.narrow(0, 0, 2), norm, sums.narrow(0, 3, sums.size(0) - 3)}).cpu();
  const auto* const values = seen.const_data_ptr<double>();
  require_rows(setup_->experts, values[4]);
  if (values[3] > 0) {  // nothing of this attempt counts
    report.lost_rows = static_cast<int64_t>(values[3]);
    return;
  }
  report.votes.assign(values + 5, values + seen.numel());
  report.loss = values[0];
  report.mtp_loss = values[1];
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

at::Tensor Learner::lost_rows() {
  at::Tensor all = at::zeros({}, at::TensorOptions(at::kDouble).device(device_));
  model_->for_each_moe([&](int64_t, MoeLayer& moe) {
    const at::Tensor lost = moe.lost_rows();
    if (lost.defined()) all += lost.to(all.options());
  });
  return all;
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
    b.stale = true;
  }
  const FaultAction fault = faults_.at("optim", step);
  if (store_->buckets().empty()) return;  // all is frozen
  const Bucket& first = store_->buckets()[0];
  const at::Tensor master = first.masters()[0];
  if (fault == FaultAction::kFlip) master.narrow(0, 0, 1).neg_();  // a bit
  if (fault == FaultAction::kNan || fault == FaultAction::kInf) {
    for (const at::Tensor& x : {master, first.own}) {
      x.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
}

// In the order in which a step computes: weights, forward, gradients from the head down. Every rank
// searches, even if another one has found a value: the passes contain collectives.
std::string Learner::first_bad(const Feed& feed, const TrainState& state) {
  const auto weights = bad_values(*store_, &Bucket::own);
  const auto gradients = bad_gradients(*store_);
  Finding found = bad_forward(feed, state);
  // Looked at by all where there are several: a step between ranks takes all of them.
  if (!gradients.empty() || !setup_->state.alone()) {
    found.first_of(bad_gradient(feed, state));
    // The previous step's gradient, summed over ranks: the rank that owns this part of it sees it.
    if (!gradients.empty()) {
      found.first_of({.stage = Stage::kSum,
                      .what = "gradient of " + described(gradients.back()) +
                              "; replayed, it is finite: a passing fault"});
    }
  }
  if (!weights.empty()) {
    found.first_of({.stage = Stage::kWeights, .what = "weight " + described(weights.front())});
  }
  if (!found.what.empty() && setup_->state.stage_ranks() > 1) {
    found.what = "stage " + std::to_string(setup_->state.stage_rank() + 1) + '/' +
                 std::to_string(setup_->state.stage_ranks()) + ", " + found.what;
  }
  const std::vector<std::string> all =
      setup_->state.all_gather_texts("bad values", found.key() + found.what);
  const auto first = std::min_element(all.begin(), all.end());
  const std::string what = first->substr(found.key().size());
  if (what.empty()) return "the loss; replayed, its forward is finite: a passing fault";
  return setup_->state.alone() ? what : "rank " + std::to_string(first - all.begin()) + ", " + what;
}

std::string Learner::Finding::key() const {
  std::string place = std::to_string(order);
  return std::to_string(static_cast<int>(stage)) + std::string(20 - place.size(), '0') + place;
}

void Learner::Finding::first_of(const Finding& other) {
  if (other.key() < key()) *this = other;
}

// A rank's own gradients tell whose it is; that of their sum alone, that each was finite.
Learner::Finding Learner::bad_gradient(const Feed& feed, const TrainState& state) {
  StepInput input = input_of(feed, state);
  input.context.budgeted = false;  // as the step that is replayed: it had room for all
  Finding found;
  const auto look = [&](const Action& action, int64_t slot, const at::Tensor& gradient) {
    const NamedParam& named = store_->slots()[static_cast<size_t>(slot)].named;
    const auto bad = bad_values_of(named, gradient);
    if (bad.empty()) return;
    const int64_t units = model_->num_units();
    const auto slots = static_cast<int64_t>(store_->slots().size());
    const int64_t unit = action.microbatch * units + units - 1 - action.chunk;
    found.first_of({.stage = Stage::kBackward,
                    .order = (unit + 1) * slots - 1 - slot,
                    .what = "gradient of " + described(bad.front()) + ", microbatch " +
                            std::to_string(action.microbatch) +
                            " (replayed: the same; its forward is finite)"});
  };
  executor_->run(list_of(static_cast<int>(feed.microbatches.size())), input,
                 {.update = [](const StepOutput&) {}, .gradient = look});
  const auto sums = bad_gradients(*store_);
  if (!sums.empty()) {
    found.first_of({.stage = Stage::kSum,
                    .what = "gradient of " + described(sums.back()) +
                            " (replayed: the same; each rank's own is finite)"});
  }
  return found;
}

Learner::Finding Learner::bad_forward(const Feed& feed, const TrainState& state) {
  const at::NoGradGuard no_grad;
  Context context = input_of(feed, state).context;
  context.owns_backward = false;  // counts nothing a second time
  context.budgeted = false;       // there was room for all
  Finding found;
  const int64_t units = model_->num_units();
  std::vector<int64_t> tokens;
  for (const Batch& batch : feed.microbatches) tokens.push_back(batch.ids_BS.numel());
  const auto look = [&](int64_t unit, int64_t m, const at::Tensor& h) {
    const Batch& batch = feed.microbatches[static_cast<size_t>(m)];
    context.first_token = feed.first_token + m * whole_tokens(batch);
    const UnitResult r = model_->forward(unit, h, batch, context);
    const at::Tensor& value = r.h.defined() ? r.h : r.loss_sum;
    if (!at::isfinite(value).all().item<bool>()) {
      found.first_of({.stage = Stage::kForward,
                      .order = m * units + unit,
                      .what = "forward of " + unit_name(model_->config(), unit) + ", microbatch " +
                              std::to_string(m) + " (replayed: the same)"});
    }
    return r.h;
  };
  executor_->pass(list_of(static_cast<int>(tokens.size()), /*training=*/false), tokens, look,
                  context.training);
  return found;
}

void Learner::through_units(const std::vector<int64_t>& tokens, const Executor::UnitFunction& f) {
  executor_->pass(list_of(static_cast<int>(tokens.size()), /*training=*/false), tokens, f);
}

Learner::Sums Learner::evaluate(const TokenBatch& own) {
  const at::NoGradGuard no_grad;
  const Feed feed =
      make_feed(own, std::max<int64_t>(own.B, 1), device_, 1, row_cut(*setup_, recipe_.model));
  const Batch& batch = feed.microbatches[0];
  double loss = 0;
  through_units({batch.ids_BS.numel()}, [&](int64_t unit, int64_t, const at::Tensor& h) {
    const UnitResult r = model_->forward(unit, h, batch, {});
    if (r.loss_sum.defined()) {
      loss += model_->summed_over_batch(r.loss_sum.to(at::kDouble), batch).item<double>();
    }
    return r.h;
  });
  require_rows(setup_->experts, missed_rows(setup_->experts, device_).item<double>());
  return {.loss = setup_->state.all_reduce_stages({loss})[0], .weight = feed.weight_sum};
}

void Learner::add_to(CheckpointState& state, Saved what) {
  for (size_t s = 0; s < store_->slots().size(); ++s) {
    const ParamStore::Slot& slot = store_->slots()[s];
    const Bucket& b = store_->buckets()[static_cast<size_t>(slot.bucket)];
    if (what.to_load && !store_->reads_loaded(b)) continue;
    const ProcessGroup& same = *b.sharers.replicas;
    const Replica replica = what.to_load ? Replica() : Replica{same.rank(), same.size()};
    const int64_t from = store_->owned(static_cast<int64_t>(s)).from;
    const auto part = [&](const at::Tensor& x) { return store_->part(static_cast<int64_t>(s), x); };
    const auto add = [&](const std::string& prefix, const StateTensor& live) {
      state.add_range(prefix + slot.named.name, *slot.named.param, from, live, replica);
    };
    add("model.",
        b.in_halves() ? StateTensor(part(b.own), part(b.low)) : StateTensor(part(b.master)));
    if (what.weights_alone) continue;
    const std::vector<std::string> names = optimizer_->state_names(b);
    for (size_t i = 0; i < names.size(); ++i) {
      add("optimizer." + names[i] + '.', state_tensor(static_cast<int64_t>(s), i, names[i]));
    }
    const Param& p = *slot.named.param;
    const std::vector<SlotState> others = optimizer_->slot_states(p, b.key);
    for (size_t i = 0; i < others.size(); ++i) {
      state.add_range("optimizer." + others[i].name + '.' + slot.named.name,
                      state_like(p, others[i].extent), 0, slot.state[i], replica);
    }
  }
  for (const NamedParam& other : store_->others()) {
    const Owners owners = store_->sharers_of(other);
    const ProcessGroup &cut = *owners.owners, &same = *owners.replicas;
    // Whole on each of them, to read and to write.
    const Replica replica{same.rank() * cut.size() + cut.rank(), same.size() * cut.size()};
    state.add("model." + other.name, *other.param, what.to_load ? Replica() : replica);
  }
}

StateTensor Learner::state_tensor(int64_t slot, size_t i, const std::string& name) {
  const int64_t bucket = store_->slots()[static_cast<size_t>(slot)].bucket;
  const Bucket& b = store_->buckets()[static_cast<size_t>(bucket)];
  const at::Tensor value = store_->part(slot, b.state[i]);
  if (b.scales.empty()) return value;
  const auto take = [this, slot, i, n = value.numel()](int64_t at, const at::Tensor& numbers) {
    at::Tensor all;
    {
      const std::lock_guard lock(brought_mutex_);
      at::Tensor& kept = brought_[{slot, i}];
      if (!kept.defined()) kept = at::zeros({n}, at::kFloat);
      all = kept;
    }
    all.narrow(0, at, numbers.numel()).copy_(numbers);
  };
  const at::Tensor scales = store_->part_of_blocks(slot, b.scales[i]);
  return StateTensor::coded(value, scales, is_second_moment(name), take);
}

RebalanceState Learner::rebalance_state() const {
  return rebalancer_ ? rebalancer_->state() : RebalanceState{};
}

bool Learner::restore(const RebalanceState& state) {
  return rebalancer_ ? rebalancer_->restore(state) : state.ranks == 0;
}

void Learner::loaded(bool weights_alone) {
  if (weights_alone) {
    for (Bucket& b : store_->buckets()) {
      for (at::Tensor& x : b.state) x.zero_();
      for (at::Tensor& x : b.scales) x.zero_();
    }
    for (ParamStore::Slot& slot : store_->slots()) {
      for (at::Tensor& x : slot.state) x.zero_();
    }
  }
  for (auto& [of, numbers] : brought_) {
    const auto& [slot, i] = of;
    const int64_t bucket = store_->slots()[static_cast<size_t>(slot)].bucket;
    const Bucket& b = store_->buckets()[static_cast<size_t>(bucket)];
    const bool second = is_second_moment(optimizer_->state_names(b)[i]);
    const at::Tensor codes = store_->part(slot, b.state[i]);
    const at::Tensor scales = store_->part_of_blocks(slot, b.scales[i]);
    constexpr int64_t kAtATime = int64_t{1} << 24;
    for (int64_t from = 0; from < numbers.numel(); from += kAtATime) {
      const int64_t n = std::min(kAtATime, numbers.numel() - from);
      code_moments(numbers.narrow(0, from, n).to(device_), codes.narrow(0, from, n),
                   scales.narrow(0, from / kMomentBlock, moment_blocks(n)), second,
                   /*dithered=*/false);
    }
    numbers.reset();
  }
  brought_.clear();
  store_->spread_loaded();
  store_->values_from_masters();
}

}  // namespace troupe
