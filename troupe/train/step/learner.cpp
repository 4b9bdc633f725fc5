#include "troupe/train/step/learner.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/parts/lora.h"
#include "troupe/ops/grad_norm.h"
#include "troupe/ops/moe_ffn/fp8_history.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/shared_gpu.h"
#include "troupe/train/forecast/step_work.h"
#include "troupe/train/layout/expert_dispatch.h"
#include "troupe/train/step/nonfinite_search.h"
#include "troupe/train/step/take_device.h"

namespace troupe {
namespace {

using Part = Executor::Handlers::Part;

// Runs a backward and a forward in turns (parallel.overlap); empty: there are none.
std::function<void(const Part& back, const Part& ahead)> both_of(
    const std::shared_ptr<Turns>& turns) {
  if (!turns) return {};
  return [turns](const Part& back, const Part& ahead) { turns->both(back, ahead); };
}

// Whether a parameter's values are in memory all the time, whole.
bool stays_whole(const ParamStore& store, const Param& p) {
  const int64_t slot = store.slot_of(&p);
  if (slot < 0) return true;
  const int64_t bucket = store.slots()[static_cast<size_t>(slot)].bucket;
  return !store.buckets()[static_cast<size_t>(bucket)].dropped_between_uses;
}

Sharing sharing_of(const ParallelSetup& setup, const Recipe& recipe) {
  Sharing out = setup.sharing;
  out.exact = recipe.run.bits == Bits::kLayout;
  out.by_unit = recipe.train.update == UpdatePlace::kInBackward;
  return out;
}

// The sum of a batch's weights in f64, which ranks add in parts: exact where each is a multiple of
// 2^-32 and all are below 2^21.
void require_exact_weights(const Feed& feed) {
  constexpr double kUnits = 0x1p32;
  for (const Batch& batch : feed.microbatches) {
    const at::Tensor units = batch.weights_BS.to(at::kDouble) * kUnits;
    if (!at::equal(units, units.round())) {
      fail(Code::kBadValue, "run.bits", "layout needs weights of targets that are multiples of",
           "2^-32, so that their sum is exact in every layout; round them, or set it to repeat");
    }
  }
  TROUPE_CHECK(feed.weight_sum < 0x1p21, "a step's targets weigh", feed.weight_sum,
               ", and run.bits layout adds weights below 2^21");
}

// Null: experts stay.
std::unique_ptr<Rebalancer> build_rebalancer(const ResolvedRun& run, const ParallelSetup& setup,
                                             Model& model, ParamStore& store) {
  const RebalanceConfig& rebalance = run.parallel.rebalance;
  if (rebalance.every <= 0 || setup.experts == nullptr) return nullptr;
  std::vector<Rebalancer::Place> places;
  for (const MoeUnit& moe : moe_units(run.model)) {
    places.push_back({moe.unit, placement_of(run.parallel, setup.experts->size(), moe.config)});
  }
  return std::make_unique<Rebalancer>(rebalance, model, places, store, setup.experts,
                                      setup.state.sum_over_all());
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

Learner::Learner(const ResolvedRun& run, const c10::Device& device, const Faults& faults,
                 std::shared_ptr<const ParallelSetup> setup)
    : recipe_(run),
      device_(device),
      precision_(precision_on(device, run.train.precision)),
      faults_(faults),
      model_(build_model(run.model, build_options(run, *setup, faults))),
      setup_(std::move(setup)) {
  require_bits(recipe_);
  if (recipe_.train.fp8) use_fp8(*recipe_.train.fp8, *model_);
  if (!device_.is_cpu()) {
    take_device(device_, recipe_.run);
    set_shares_gpu(!setup_->state.alone());
  }
  work_ = step_work(recipe_, recipe_.parallel);
  const std::map<std::string, int> first = first_readers(*model_);
  const OptimizerBase& base = base_of(recipe_.train.optimizer);
  std::vector<NamedParam> params;
  model_->for_each_param(-1, [&](const std::string& name, Param& p) {
    p.frozen |= is_frozen(base, name);
    params.push_back({name, &p, first.at(name)});
  });
  store_ = std::make_unique<ParamStore>(
      std::move(params), at::TensorOptions(type_of(precision_)).device(device_),
      [&](const NamedParam& named) { return bucket_key(base, named); },
      sharing_of(*setup_, recipe_),
      recipe_.train.offload_state ? StateHome::kHost : StateHome::kDevice);
  store_->initialize_all(recipe_.train.seed);
  histories_ = fp8_histories(*model_);
  optimizer_ = std::visit([](const auto& c) { return c.build(); }, recipe_.train.optimizer);
  make_state(*optimizer_, base.moments, *store_);
  tensors_ = std::make_unique<CheckpointTensors>(*store_, *optimizer_,
                                                 !recipe_.checkpoint.init_from.empty());
  executor_ = std::make_unique<Executor>(*model_, *store_, faults_, owners(work_),
                                         setup_->state.world().pulse(), setup_->channels);
  if (recipe_.train.offload_layers > 0) {
    executor_->offload(offloaded_units(recipe_), std::make_unique<ActivationOffload>(device_));
  }
  if (recipe_.train.offload_state) stream_ = std::make_unique<StateStream>(device_);
  if (recipe_.train.update == UpdatePlace::kInBackward)
    units_ = std::make_unique<UnitUpdates>(device_);
  update_ = std::make_unique<StepUpdate>(StepUpdate::Run{.recipe = recipe_,
                                                         .precision = precision_,
                                                         .setup = *setup_,
                                                         .faults = faults_,
                                                         .model = *model_,
                                                         .store = *store_,
                                                         .optimizer = *optimizer_,
                                                         .stream = stream_.get(),
                                                         .units = units_.get()});
  if (recipe_.train.cuda_graph && why_no_graph(setup_->state.alone(), device_, faults_).empty()) {
    StepUpdate* const captured = update_in_graph(recipe_.train.optimizer) ? update_.get() : nullptr;
    graph_ = std::make_unique<StepGraph>(*model_, *store_, *executor_, captured,
                                         setup_->state.world().pulse(), device_);
  }
  rebalancer_ = build_rebalancer(recipe_, *setup_, *model_, *store_);
}

StepInput Learner::input_of(const Feed& feed, const TrainState& state) const {
  // Else ranks would issue lists of other lengths, and sum what does not belong together (A3).
  if (recipe_.run.bits == Bits::kLayout) require_exact_weights(feed);
  const auto own = std::ssize(feed.microbatches);
  const int64_t all = feed.all_microbatches, data = setup_->state.data_ranks();
  TROUPE_CHECK(own == (all + data - 1) / data, "this rank has", own, "microbatches of", all, "over",
               data, "data ranks");
  for (const Batch& batch : feed.microbatches) {
    const int64_t cut = batch.slice ? batch.slice->ranks() : 1;
    TROUPE_CHECK(cut == recipe_.parallel.context, "rows are cut over", cut, "ranks, and the run's",
                 "context is", recipe_.parallel.context);
  }
  // A mean over pairs, as many in each microbatch: both means of train.loss_mean are this one.
  const auto rows = static_cast<double>(feed.all_microbatches * recipe_.plan.micro_batch);
  const std::vector<double> of_pairs(feed.microbatches.size(), 2 / rows);
  StepInput out{.microbatches = feed.microbatches,
                .factors = prefers() ? of_pairs
                                     : loss_factors(recipe_.train.loss_mean, feed.weights,
                                                    feed.weight_sum, feed.all_microbatches),
                .loss_scale = precision_ == Precision::kFp16 ? state.loss_scale.scale : 1,
                .all_microbatches = feed.all_microbatches,
                .first_token = feed.first_token,
                .apart = recipe_.run.bits == Bits::kLayout,
                .counts_terms = setup_->state.first_of_microbatch(),
                .keep_choices = feed.keep_choices};
  TROUPE_CHECK(teacher_ || !recipe_.train.teacher || !has_head(), "nobody opened the teacher");
  if (teacher_) out.teacher = [this](const Batch& batch) { return teacher_->words_of(batch); };
  out.context.training = true;
  out.context.seed = recipe_.train.seed;
  out.context.step = state.done.steps;
  out.context.all_sum = setup_->state.sum_over_stage();
  // Microbatches of a step have as many rows on each rank, or none; cut ones are not of one length.
  const ParallelConfig& parallel = recipe_.parallel;
  if (parallel.context == 1 && parallel.tensor == 1) {
    out.context.most_tokens = recipe_.plan.micro_batch * recipe_.data.sequence;
  }
  return out;
}

const std::vector<Action>& Learner::list_of(int microbatches, bool training) {
  Schedule& schedule = schedules_[{training, microbatches}];
  if (schedule.empty()) {
    StepWork work = work_;
    work.microbatches = microbatches;
    work.training = training;
    work.replicas = static_cast<int>(setup_->state.size()) / setup_->state.stage_ranks();
    schedule = step_schedule(recipe_.parallel, work);
  }
  return schedule[static_cast<size_t>(setup_->state.stage_rank())];
}

StepReport Learner::step(const Feed& feed, TrainState& state, const Votes& votes) {
  StepReport report;
  report.tokens = feed.tokens;
  report.weight_sum = feed.weight_sum;
  const auto& list = list_of(static_cast<int>(feed.microbatches.size()));
  StepInput input = input_of(feed, state);
  if (prefers()) input.preferences = references(feed, PassKind::kReference);
  std::vector<double> own;
  bool asked = false;
  const auto run = [&] {
    KeepsFp8Weights rounded(recipe_.train.fp8, *model_, feed.microbatches.size(),
                            [&](const Param& p) { return stays_whole(*store_, p); });
    const auto gradients_are_whole = [&] {
      rounded.forget();
      // Not asked again where a step is repeated.
      if (votes && !std::exchange(asked, true)) own = votes();
    };
    const Executor::Handlers handlers{
        .update =
            [&](const StepOutput& output) {
              gradients_are_whole();
              update_->run(output, own, state, report);
            },
        .update_unit = [&](const std::vector<int64_t>& buckets,
                           const StepOutput& output) { update_->run_unit(buckets, output, state); },
        .gradient = {},
        .both = both_of(setup_->turns)};
    if (!graph_) return executor_->run(list, input, handlers);
    return graph_->run(list, input, handlers,
                       {.numbers = [&] { return update_->numbers(state); },
                        .learn =
                            [&](const at::Tensor& seen) {
                              gradients_are_whole();
                              update_->learn(seen, own, state, report);
                            }});
  };
  report.output = run();
  if (report.lost_rows > 0) {
    const SumOver sum = setup_->state.sum_over_stage();
    model_->for_each_moe([&](int64_t, MoeLayer& moe) { moe.forget_step(sum); });
    for (Fp8History* history : histories_) history->forget();
    ++state.reruns;
    input.context.budgeted = false;
    report.output = run();
  }
  report.seconds = graph_ ? graph_->seconds() : executor_->seconds();
  if (graph_) report.graph = graph_->note();
  if (recipe_.train.offload_layers > 0 && !std::exchange(offload_told_, true)) {
    report.offloaded = executor_->offloaded_bytes();
  }
  if (!report.finite && precision_ != Precision::kFp16) report.first_bad = first_bad(feed, input);
  model_->end_of_step(setup_->state.sum_over_stage(), report.skipped);
  report.fp8_saturated = end_fp8_step();
  ++state.done.steps;
  state.done.samples += feed.samples;
  state.done.tokens += feed.tokens;
  state.loss_tokens += feed.loss_tokens;
  if (rebalancer_) report.moved = rebalancer_->after_step(state.done.steps, report.output);
  return report;
}

// The ranks of a stage have the same maxima then, and one of them counts.
at::Tensor Learner::end_fp8_step() {
  if (!recipe_.train.fp8 || recipe_.train.fp8->recipe != Fp8Recipe::kDelayed) return {};
  const ParallelState& state = setup_->state;
  at::Tensor saturated = at::zeros({}, at::TensorOptions(at::kLong).device(device_));
  if (histories_.empty()) return saturated;
  const at::Tensor of_stage = Fp8History::end_of_step(histories_, state.max_over_stage());
  return state.first_of_stage() ? of_stage : saturated;
}

std::string Learner::first_bad(const Feed& feed, const StepInput& input) {
  const int n = static_cast<int>(feed.microbatches.size());
  const NonfiniteSearch search(*model_, *store_, *executor_, setup_->state, list_of(n),
                               list_of(n, /*training=*/false));
  return search.first(feed, input);
}

void Learner::through_units(const std::vector<int64_t>& tokens, const Executor::UnitFunction& f,
                            PassKind kind) {
  executor_->pass(list_of(static_cast<int>(tokens.size()), /*training=*/false), tokens, f, kind);
}

Learner::Sums Learner::evaluate(const TokenBatch& own) {
  const at::NoGradGuard no_grad;
  const Feed feed =
      make_feed(own, std::max<int64_t>(own.B, 1), device_, 1, row_cut(recipe_, *setup_));
  const Batch& batch = feed.microbatches[0];
  double loss = 0;
  const auto sum = [&](int64_t unit, int64_t, const at::Tensor& h) {
    const UnitResult r = model_->forward(unit, h, batch, {});
    if (r.loss_sum.defined()) {
      loss += model_->summed_over_batch(r.loss_sum.to(at::kDouble), batch).item<double>();
    }
    return r.h;
  };
  through_units({batch.ids_BS.numel()}, sum, PassKind::kEvaluation);
  require_rows(setup_->experts, missed_rows(setup_->experts, device_).item<double>());
  return {.loss = setup_->state.all_reduce_stages({loss})[0], .weight = feed.weight_sum};
}

std::vector<std::shared_ptr<const Preference>> Learner::references(const Feed& feed,
                                                                   PassKind kind) {
  const WithoutAdapters reference;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> tokens;
  for (const Batch& batch : feed.microbatches) tokens.push_back(batch.ids_BS.numel());
  std::vector<std::shared_ptr<const Preference>> out(has_head() ? tokens.size() : 0);
  const auto asked = std::make_shared<const Preference>();
  const auto look = [&](int64_t unit, int64_t m, const at::Tensor& h) {
    const auto at = static_cast<size_t>(m);
    Batch batch = feed.microbatches[at];
    batch.replay_TK.clear();  // choices of the model with its adapters
    batch.preference = asked;
    const UnitResult r = model_->forward(unit, h, batch, {});
    if (r.log_probs_B.defined()) {
      out.at(at) = std::make_shared<const Preference>(
          Preference{.options = recipe_.train.dpo, .reference_B = r.log_probs_B});
    }
    return r.h;
  };
  through_units(tokens, look, kind);
  return out;
}

Learner::PairSums Learner::evaluate_pairs(const TokenBatch& own) {
  const at::NoGradGuard no_grad;
  const Feed feed = make_feed(own, std::max<int64_t>(own.B, 1), device_, 1);
  const auto references_of_all = references(feed, PassKind::kEvaluation);
  Batch batch = feed.microbatches[0];
  if (!references_of_all.empty()) batch.preference = references_of_all[0];
  std::vector<double> sums(4, 0.);
  const auto add = [&](int64_t unit, int64_t, const at::Tensor& h) {
    const UnitResult r = model_->forward(unit, h, batch, {});
    if (r.loss_sum.defined()) {
      const at::Tensor all =
          at::cat({r.loss_sum.reshape({1}), r.rewards_3}).to(at::kDouble).cpu().contiguous();
      const auto* const values = all.const_data_ptr<double>();
      sums.assign(values, values + all.numel());
    }
    return r.h;
  };
  through_units({batch.ids_BS.numel()}, add, PassKind::kEvaluation);
  require_rows(setup_->experts, missed_rows(setup_->experts, device_).item<double>());
  const std::vector<double> all = setup_->state.all_reduce_stages(sums);
  const int64_t pairs = own.B / 2;
  return {{.loss = all[0], .weight = static_cast<double>(pairs)}, all[1], all[2], all[3]};
}

RebalanceState Learner::rebalance_state() const {
  return rebalancer_ ? rebalancer_->state() : RebalanceState{};
}

bool Learner::restore(const RebalanceState& state) {
  return rebalancer_ ? rebalancer_->restore(state) : state.ranks == 0;
}

}  // namespace troupe
