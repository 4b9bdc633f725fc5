#include "troupe/train/trainer.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <sstream>

#include "troupe/checkpoint/names.h"
#include "troupe/checkpoint/run_folder.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/text/readable.h"
#include "troupe/train/evaluate.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/forecast/save_time.h"
#include "troupe/train/going_on.h"
#include "troupe/train/observe/memory_use.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/stacks.h"
#include "troupe/train/replicas.h"
#include "troupe/train/report/report.h"
#include "troupe/train/sample.h"
#include "troupe/train/start_lines.h"
#include "troupe/train/trained.h"

namespace troupe {
namespace {

enum Due { kLine, kRecord, kExperts, kEval, kSaveTime, kSaveSteps, kReplicas };

double unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// What must not change when a run goes on: the model, the order of its data, its seed.
void add_config(Fingerprint& out, const Recipe& recipe) {
  for (auto& [path, text] : flatten(recipe.model)) out.emplace_back("model." + path, text);
  out.emplace_back("data.sequence", std::to_string(recipe.data.sequence));
  out.emplace_back("train.seed", std::to_string(recipe.train.seed));
  out.emplace_back("train.batch", std::to_string(plan_of(recipe).batch));
}

// The recipe with its microbatch, and why it is that.
std::pair<Recipe, std::string> settled_for(Recipe recipe, const Ranks& ranks) {
  if (!ranks.alone()) {
    recipe.train.micro_batch = ranks.choice().micro_batch;
    return {std::move(recipe), ranks.choice().micro_why};
  }
  const RanksAtHand one{.memory = available_memory(recipe), .on_gpu = runs_on_gpu(recipe)};
  const MicroBatchChoice micro = choose_micro_batch(recipe, one);
  recipe.train.micro_batch = micro.sequences;
  return {std::move(recipe), micro.why};
}

// A run that cannot fit is told before anything is allocated, not by the system's killer.
void require_memory(const Recipe& recipe, const RunTools& tools) {
  Ranks& ranks = *tools.ranks;
  const double available = available_memory(recipe, ranks.world().place().local_size);
  if (available <= 0) return;  // the device is not here: device_of says so
  Recipe laid = recipe;
  laid.parallel = ranks.parallel();
  const MemoryVerdict verdict = judge_memory(laid, runs_on_gpu(laid), available, ranks.size());
  if (!verdict.fits && !tools.force) {
    throw Error("model, train: " + verdict.line, Code::kTooLarge);  // the line has the code
  }
  if (verdict.warns) tools.log.warning(verdict.line);
}

void require_space(const CheckpointConfig& config, int64_t bytes, const Log& log) {
  const std::string warning = space_warning(config.dir, bytes, config.keep);
  if (warning.empty()) return;
  if (config.strict) fail(Code::kNoSpace, config.dir, warning);
  log.warning(warning);
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const RunTools& tools)
    : Trainer(settled_for(recipe, *tools.ranks), tools) {}

Trainer::Trainer(const std::pair<Recipe, std::string>& settled, const RunTools& tools)
    : recipe_(settled.first),
      micro_why_(settled.second),
      tools_(tools),
      plan_(plan_of(recipe_)),
      ranks_(*tools.ranks),
      pulse_(ranks_.world().pulse()),
      first_(ranks_.rank() == 0),
      health_(recipe_.log.health),
      cadences_({Cadence(recipe_.log.every), Cadence(record_interval(recipe_)),
                 Cadence(recipe_.log.experts), Cadence(recipe_.eval.every),
                 Cadence(Span{recipe_.checkpoint.every.ns, Span::Unit::kTime}),
                 Cadence(steps(recipe_.checkpoint.every_steps)),
                 Cadence(recipe_.run.check_replicas.value_or(Span()))}) {
  FLAGS_caffe2_use_fatal_for_enforce = false;  // memory that runs out is told, and aborts nothing
  const int64_t threads = recipe_.run.threads;
  at::set_num_threads(static_cast<int>(
      threads > 0 ? threads : std::min<int64_t>(at::get_num_threads(), host_cores())));
  pulse_.begin(Phase::kData);
  auto [tokenizer, data] = open_data(recipe_, tools_.log, tools_.signals.question());
  tokenizer_ = std::move(tokenizer);
  data_ = std::move(data);
  pulse_.begin(Phase::kModel);
  require_memory(recipe_, tools_);
  learner_ = std::make_unique<Learner>(
      recipe_, device_of(recipe_.run.device, ranks_.world().place().local_rank), tools_.faults,
      tools_.ranks);
  if (learner_->precision() == Precision::kFp16) {
    state_.loss_scale = start_of(recipe_.train.loss_scale);
  }
  const ModelCosts costs = learner_->model().costs();
  flops_per_token_ = costs.flops_per_token(recipe_.data.sequence);
  full_flops_per_token_ = costs.flops_per_token(recipe_.data.sequence, /*full=*/true);
  peak_ = device_peak(learner_->device());
  tools_.signals.on_status([log = tools_.log] { log.info("stacks:\n" + stacks_of_all_threads()); });
  pulse_.begin(Phase::kLoad);
  tools_.faults.at("load.read");
  resume_run();
  learner_->add_to(tensors_, {});
}

Trainer::~Trainer() {
  tools_.signals.on_status({});
}

void Trainer::resume_run() {
  fingerprint_ = data_.train->fingerprint();
  add_config(fingerprint_, recipe_);
  for (const auto& [what, value] : fingerprint_) ranks_.require_equal(what, value);
  const Peers peers = ranks_.peers();
  CheckpointConfig config = recipe_.checkpoint;
  if (tools_.force) config.waive_changed = {"*"};
  CheckpointState to_load;
  learner_->add_to(to_load, {.to_load = true});
  const auto loaded = resume(config, to_load, fingerprint_, peers, tools_.faults);
  run_id_ = loaded ? loaded->point.manifest.run : peers.gather(new_run_id())[0];
  if (loaded) {
    read_config(loaded->point.manifest.scalars, state_);
    require_counters(state_, loaded->point.manifest.step, loaded->point.folder);
    require_schedule(loaded->point.folder);
    learner_->loaded(false);
    if (!learner_->restore(state_.rebalance)) {
      tools_.log.info(
          "experts lie in their default places, not where the checkpoint's run had moved "
          "them");
    }
    resumed_step_ = saved_step_ = state_.done.steps;
    read_bytes_ = static_cast<int64_t>(ranks_.summed({static_cast<double>(loaded->bytes_read)})[0]);
    newest_ = loaded->point.folder;
    for (const std::string& passed : loaded->point.passed_over) {
      tools_.log.warning("passed over " + passed);
    }
    if (!loaded->point.latest_note.empty()) tools_.log.warning(loaded->point.latest_note);
    for (const std::string& note : loaded->notes) tools_.log.info(note);
  } else if (!config.init_from.empty()) {
    const Loaded from = load_weights(*learner_, config.init_from,
                                     {.waive_missing = config.waive_missing,
                                      .waive_unused = config.waive_unused,
                                      .cast = config.cast,
                                      .strict = config.strict},
                                     tools_.faults, peers);
    for (const std::string& note : from.notes) tools_.log.info(note);
    tools_.log.info("weights from " + config.init_from + "; step 0");
  }
  if (!loaded && first_) refuse_lost_steps(recipe_.checkpoint, tools_.force, tools_.log);
  state_.run = plan_.run;
  pulse_.done(state_.done.steps);
  before_ = experts_asked_ = state_.done;
}

// A run that goes on with another length has had another schedule: asked for, or refused.
void Trainer::require_schedule(const std::string& folder) const {
  if (plan_.run.steps <= state_.done.steps) return;  // it is finished
  const std::string what = other_schedule(recipe_.train, state_.done, state_.run, plan_.run);
  if (what.empty()) return;
  const std::string name = "train.length";
  const std::vector<std::string>& waived = recipe_.checkpoint.waive_changed;
  if (!tools_.force && !matches_any(waived, name)) {
    fail(Code::kOtherRun, folder,
         what + ". checkpoint.waive_changed=[" + name + "] goes on all the same, from sample " +
             std::to_string(state_.done.samples));
  }
  tools_.log.warning(what + "; it goes on from sample " + std::to_string(state_.done.samples));
}

// A save that outlasts the time between SIGTERM and SIGKILL is lost: told before it matters.
void Trainer::foresee_save() {
  const double grace = recipe_.run.grace.seconds();
  if (grace <= 0) return;
  constexpr double kSlowDisk = 2e6;  // bytes a second; what it holds in the time is not looked at
  const int64_t bytes = tensors_.owned_bytes();
  double seconds = state_.save_seconds;
  if (seconds == 0 && static_cast<double>(bytes) > kSlowDisk * grace) {
    seconds = write_seconds(tools_.fs, recipe_.checkpoint.dir, bytes).value_or(0);
  }
  if (seconds == 0) return;
  tools_.log.info("a checkpoint of " + in_gib(static_cast<double>(bytes)) + " GiB takes about " +
                  fixed(seconds, 1) + " s here, and run.grace leaves " +
                  to_text(recipe_.run.grace));
  warn_of_slow_save(seconds);
}

void Trainer::warn_of_slow_save(double seconds) {
  const Duration grace = recipe_.run.grace;
  if (grace.ns == 0 || seconds <= grace.seconds() || std::exchange(warned_of_save_, true)) return;
  tools_.log.warning(
      "a checkpoint takes " + fixed(seconds, 1) + " s, longer than the " + to_text(grace) +
      " of run.grace: a stop by SIGTERM would lose the steps since the"
      " one before. Save oftener (checkpoint.every), or have the launcher wait longer");
}

RunEnd Trainer::run() {
  if (state_.done.steps >= plan_.run.steps) {
    tools_.log.info("already finished at step " + std::to_string(state_.done.steps) + train_on());
    if (first_) clear_leftovers(tools_.fs, recipe_.checkpoint.dir, tools_.log);
    return RunEnd::kAlreadyFinished;
  }
  const std::string& dir = recipe_.checkpoint.dir;
  saver_ = std::make_unique<Saver>(recipe_.checkpoint, run_id_, ranks_.peers(), tools_.log,
                                   tools_.fs, tools_.faults);
  saver_->go_on_from(resumed_step_);
  if (tools_.begun) tools_.begun();
  require_space(recipe_.checkpoint, tensors_.owned_bytes(), tools_.log);
  if (first_) {
    jsonl_ =
        std::make_unique<AppendFile>(dir + "/log.jsonl", tools_.log, AppendFile::Holds::kLines);
  }
  if (first_ && recipe_.log.tensorboard) {
    board_ = std::make_unique<TensorBoard>(dir + "/tb", resumed_step_, tools_.log);
  }
  profile_ = std::make_unique<Profile>(first_ ? recipe_.profile : ProfileConfig{}, dir, tools_.log,
                                       !learner_->device().is_cpu());
  say_start();
  foresee_save();
  Record started;
  started.add("event", std::string_view(resumed_step_ >= 0 ? "resume" : "start"));
  started.add("samples", state_.done.samples);
  started.add("params", learner_->model().costs().params());
  started.add("active_params", learner_->model().costs().active_params());
  if (resumed_step_ >= 0) started.add("read_bytes", read_bytes_);
  event(std::move(started));
  if (recipe_.eval.at_start && state_.done.steps == 0) evaluate_all();
  while (state_.done.steps < plan_.run.steps) {
    if (ranks_.alone()) stop_ = why_stop();
    if (!stop_.empty()) return stop(stop_);
    const auto begin = Clock::now();
    const double waited = pulse_.waited_seconds();
    const Feed feed = next_feed();
    // Some rank has been asked to stop: all do, before the same step.
    if (!stop_.empty()) return stop(stop_);
    const double all = std::chrono::duration<double>(Clock::now() - begin).count();
    one_step(feed, begin, {.all = all, .own = all - (pulse_.waited_seconds() - waited)});
  }
  return finish();
}

std::string Trainer::why_stop() const {
  const int signal = tools_.signals.stop();
  if (signal != 0) return signal == SIGINT ? "interrupt" : "SIGTERM";
  return out_of_time() ? "time limit " + to_text(recipe_.run.time_limit) : "";
}

bool Trainer::stop_asked() const {
  return ranks_.summed({tools_.signals.stop() != 0 ? 1.0 : 0.0})[0] > 0;
}

// Batches are made ahead by a thread; where a ramp changes their size, each knows its own.
Feed Trainer::next_feed() {
  pulse_.begin(Phase::kBatch);
  const auto size_at = [this](int64_t sample) {
    return batch_at(recipe_.train.batch_ramp, plan_.batch, sample);
  };
  const auto share_of = [this](int64_t n) { return ranks_.share_of(n / plan_.micro_batch); };
  if (reader_ == nullptr) {
    reader_ = std::make_unique<BatchReader>(
        [this, size_at, share_of, sample = state_.done.samples](int64_t) mutable {
          const int64_t count = size_at(sample), micro = plan_.micro_batch;
          const Ranks::Share share = share_of(count);
          const int64_t first = sample + share.first * micro;
          sample += count;
          return data_.train->batch(first, share.count * micro);
        },
        state_.done.steps, 2);
  }
  tools_.faults.at("batch", state_.done.steps);
  const int64_t count = size_at(state_.done.samples);
  const Ranks::Share share = share_of(count);
  const std::optional<TokenBatch> batch = next_batch(*reader_, ranks_);
  if (!batch) stop_ = why_stop();
  if (!batch) return {};
  TROUPE_CHECK(batch->first_sample == state_.done.samples + share.first * plan_.micro_batch,
               "batch of sample", batch->first_sample, "at", state_.done.samples);
  Feed feed = make_feed(*batch, plan_.micro_batch, learner_->device(), share.steps);
  if (ranks_.alone()) return feed;
  const std::string why = why_stop();
  const std::vector<double> all = ranks_.summed(
      {feed.weight_sum, static_cast<double>(feed.loss_tokens), why.empty() ? 0. : 1.});
  feed.weight_sum = all[0];
  feed.loss_tokens = static_cast<int64_t>(all[1]);
  if (all[2] > 0) stop_ = why.empty() ? "another rank was asked to stop" : why;
  feed.all_microbatches = count / plan_.micro_batch;
  feed.first_sample = state_.done.samples;
  feed.samples = count;
  feed.tokens = count * recipe_.data.sequence;
  feed.first_token = share.first * plan_.micro_batch * recipe_.data.sequence;
  return feed;
}

void Trainer::one_step(const Feed& feed, Clock::time_point begin, Wait wait) {
  before_ = state_.done;
  profile_->begin(state_.done.steps + 1);
  const StepReport report = learner_->step(feed, state_);
  pulse_.done(state_.done.steps);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  profile_->end(state_.done.steps);
  state_.seconds += seconds;
  last_step_seconds_ = seconds;
  stragglers_.add(report.seconds, wait.own);
  after_step(report, feed, seconds, wait.all);
}

void Trainer::after_step(const StepReport& report, const Feed& feed, double seconds, double wait) {
  interval_.add(report, seconds, wait);
  if (report.finite) {
    const bool first = state_.loss_ema == 0;
    state_.loss_ema = first ? report.loss : 0.98 * state_.loss_ema + 0.02 * report.loss;
  }
  if (feed.weight_sum <= 0 && !std::exchange(warned_of_masked_, true) && first_) {
    tools_.log.warning(masked_line(state_.done.steps));
  }
  require_progress(report, feed);
  note_moves(report.moved);
  note_rerun(report.lost_rows);
  const Due due = due_after_step();
  pulse_.begin(Phase::kLog);
  tools_.faults.at("log", state_.done.steps);
  if (due.line || due.record) write_record(report, feed, seconds, due.line);
  if (due.eval) evaluate_all();
  if (due.replicas) check_replicas();
  if (due.save) save(due.why, recipe_.checkpoint.when_busy);
  if (due.failed) saver_->wait();  // throws, on all ranks at one step
  note_saves();
  if (due.status) {
    tools_.log.info("status: step " + std::to_string(state_.done.steps) + ", loss " +
                    fixed(state_.loss_ema, 4) + ", newest checkpoint " +
                    (newest_.empty() ? "none" : newest_));
  }
}

Trainer::Due Trainer::due_after_step() {
  const double now = seconds_since_start();
  const std::vector<int64_t>& at = recipe_.checkpoint.at;
  // All cadences are asked, so that none falls behind.
  const bool by_time = cadences_[kSaveTime].due(before_, state_.done, now);
  const bool by_steps = cadences_[kSaveSteps].due(before_, state_.done, now);
  const bool asked = tools_.signals.take_save();
  Due due{.line = line_due(before_),
          .record = cadences_[kRecord].due(before_, state_.done, now),
          .eval = cadences_[kEval].due(before_, state_.done, now),
          .replicas = cadences_[kReplicas].due(before_, state_.done, now),
          .save = asked || by_time || by_steps ||
                  std::find(at.begin(), at.end(), state_.done.steps) != at.end(),
          .status = tools_.signals.take_status(),
          .failed = saver_->failed(),
          .why = asked ? "SIGUSR1" : "interval"};
  if (ranks_.alone()) return due;
  const auto of_first = [this](bool x) { return first_ && x ? 1.0 : 0.0; };
  const auto any = [](bool x) { return x ? 1.0 : 0.0; };
  const std::vector<double> all = ranks_.summed(
      {of_first(due.line), of_first(due.record), of_first(due.eval),
       any(asked) + of_first(due.save), any(due.status), any(due.failed), of_first(due.replicas)});
  due.line = all[0] > 0;
  due.record = all[1] > 0;
  due.eval = all[2] > 0;
  due.save = all[3] > 0;
  due.status = all[4] > 0;
  due.failed = all[5] > 0;
  due.replicas = all[6] > 0;
  return due;
}

// C7, told once: how often it happens is in every record.
void Trainer::note_rerun(int64_t lost_rows) {
  if (lost_rows == 0 || !first_ || std::exchange(told_of_rerun_, true)) return;
  tools_.log.warning(
      "step " + std::to_string(state_.done.steps) +
      ": a rank had no room for all rows of its experts (model.moe.capacity.budget " +
      to_text(recipe_.model.moe.capacity.budget) +
      "): the step was done again with room, as all such steps will be; log.jsonl "
      "counts them as reruns");
}

// What a save names lies elsewhere from now on.
void Trainer::note_moves(const std::vector<ExpertsMoved>& moved) {
  if (moved.empty()) return;
  tensors_ = {};
  learner_->add_to(tensors_, {});
  tools_.log.info(moved_line(state_.done.steps, recipe_.model.moe.experts, moved));
  std::vector<double> layers, experts, before, after;
  for (const ExpertsMoved& m : moved) {
    layers.push_back(static_cast<double>(m.layer));
    experts.push_back(static_cast<double>(m.experts));
    before.push_back(m.before);
    after.push_back(m.after);
  }
  Record r;
  r.add("event", std::string_view("rebalance"));
  r.add("layers", layers);
  r.add("experts_moved", experts);
  r.add("load_before", before);
  r.add("load_after", after);
  event(std::move(r));
}

void Trainer::require_progress(const StepReport& report, const Feed& feed) {
  const std::string step = "step " + std::to_string(state_.done.steps);
  if (!report.spike.empty()) {
    tools_.log.warning(step + ": " + report.spike + (report.skipped ? "; skipped" : ""));
    Record record;
    record.add("event", std::string_view("spike"));
    record.add("what", report.spike);
    event(std::move(record));
  }
  if (report.finite) return;
  const std::string where = report.first_bad.empty() ? "" : " First: " + report.first_bad + ".";
  const std::string what = "non-finite " +
                           std::string(std::isfinite(report.loss) ? "gradient" : "loss") +
                           ", found before the update; weights untouched." + where;
  Record record;
  record.add("event", std::string_view("nonfinite"));
  record.add("first", report.first_bad);
  record.add("first_sample", feed.first_sample);
  record.add("samples", feed.samples);
  event(std::move(record));
  const bool overflow = learner_->precision() == Precision::kFp16;
  const std::string line = step + ": " + to_text(Code::kNonFinite) + ' ' + what;
  if (overflow) {
    return tools_.log.info(step + ": fp16 overflow, skipped; loss scale now " +
                           fixed(state_.loss_scale.scale, 0));
  }
  if (state_.skipped_now > recipe_.train.max_skips) {
    fail(Code::kNonFinite, step, what, state_.skipped_now, "steps in a row were skipped");
  }
  tools_.log.warning(line + " Skipped (" + std::to_string(state_.skipped_now) + " of " +
                     std::to_string(recipe_.train.max_skips) + ")");
}

bool Trainer::line_due(const Position& before) {
  const double now = seconds_since_start();
  bool due = state_.done.steps == plan_.run.steps;
  if (recipe_.log.every.value > 0) {
    due |= cadences_[kLine].due(before, state_.done, now);
  } else {
    due |= state_.done.steps - std::max<int64_t>(resumed_step_, 0) <= 10 || now - last_line_ >= 1;
  }
  if (due) last_line_ = now;
  return due;
}

// Ranks do not share a clock: each tells how long it worked.
std::vector<OwnSeconds> Trainer::own_seconds_of_ranks() {
  if (ranks_.alone()) return {};
  const OwnSeconds mine = stragglers_.take();
  std::vector<double> all(static_cast<size_t>(ranks_.size()) * mine.size());
  std::copy(mine.begin(), mine.end(),
            all.begin() + ranks_.rank() * static_cast<int64_t>(mine.size()));
  all = ranks_.summed(std::move(all));
  std::vector<OwnSeconds> of(static_cast<size_t>(ranks_.size()));
  for (size_t i = 0; i < all.size(); ++i) of[i / mine.size()][i % mine.size()] = all[i];
  return of;
}

void Trainer::judge_stragglers(const std::vector<OwnSeconds>& of) {
  if (of.empty()) return;
  const std::optional<Straggler> before = stragglers_.slow();
  const double wall = interval_.step_seconds() * static_cast<double>(interval_.steps());
  if (!stragglers_.judge(of, interval_.steps(), wall) || !first_) return;
  if (!stragglers_.slow()) {
    tools_.log.info("rank " + std::to_string(before->rank) +
                    " is no longer slower than the others");
    return;
  }
  const Straggler& slow = *stragglers_.slow();
  tools_.log.warning("rank " + std::to_string(slow.rank) + " works " + fixed(slow.factor, 1) +
                     " times as long as the others, and they wait for it: most in " +
                     std::string(slow.phase) + ", " + fixed(slow.seconds * 1e3, 1) +
                     " ms a step where their median is " + fixed(slow.median * 1e3, 1) + " ms");
  Record r;
  r.add("event", std::string_view("straggler"));
  r.add("rank", slow.rank);
  r.add("factor", slow.factor);
  r.add("phase", slow.phase);
  r.add("phase_s", slow.seconds);
  r.add("median_s", slow.median);
  event(std::move(r));
}

void Trainer::write_record(const StepReport& report, const Feed& feed, double seconds, bool line) {
  if (line) interval_.add_other_ranks(ranks_.sum_over_all());
  const std::vector<OwnSeconds> own = line ? own_seconds_of_ranks() : std::vector<OwnSeconds>();
  judge_stragglers(own);
  if (!first_) {
    if (line) interval_.clear();
    return;
  }
  Record r;
  r.add("step", state_.done.steps);
  r.add("samples", state_.done.samples);
  r.add("tokens", state_.done.tokens);
  r.add("time", unix_seconds());
  r.add("loss", report.loss);
  r.add("ppl", std::exp(std::min(20.0, report.loss)));
  r.add("loss_ema", state_.loss_ema);
  if (report.output.mtp.defined()) r.add("mtp_loss", report.mtp_loss);
  r.add("grad_norm", report.grad_norm);
  r.add("lr", report.lr);
  r.add("weight_decay", report.weight_decay);
  r.add("batch", feed.samples);
  r.add("skipped", state_.skipped);
  r.add("nonfinite", state_.nonfinite);
  if (recipe_.model.moe.capacity.budget > 0) r.add("reruns", state_.reruns);
  if (learner_->precision() == Precision::kFp16) r.add("loss_scale", state_.loss_scale.scale);
  r.add("step_s", seconds);
  r.add("tokens_s", static_cast<double>(feed.tokens) / seconds);
  r.add("forward_s", report.seconds.forward);
  r.add("backward_s", report.seconds.backward);
  r.add("update_s", report.seconds.update);
  add_own_seconds(r, own, interval_.steps());
  if (line) {
    const double flops = flops_per_token_ * interval_.tokens_per_second();
    r.add("tflops", flops * 1e-12);
    if (peak_) {
      const double peak = *peak_ * static_cast<double>(ranks_.size());
      r.add("mfu", flops / peak);
      r.add("mfu_full", full_flops_per_token_ * interval_.tokens_per_second() / peak);
    }
    r.add("data_wait", interval_.wait_fraction());
    r.add("rss", resident_bytes());
    const MemoryUse memory = memory_use(learner_->device());
    r.add("memory", memory.allocated);
    r.add("memory_reserved", memory.reserved);
    r.add("memory_peak", memory.peak);
    r.add("memory_total", memory.total);
    r.add("memory_retries", memory.retries);
    const std::vector<LayerLoad> loads = interval_.loads();
    add_moe(r, loads, interval_.aux());
    Record shown = r;  // the line tells the interval's mean, the log each step's own
    shown.set("loss", interval_.loss());
    shown.set("step_s", interval_.step_seconds());
    shown.set("tokens_s", interval_.tokens_per_second());
    if (!tools_.steps.show(recipe_.log.format, shown, state_.done, plan_.run)) {
      tools_.log.info(step_line(recipe_.log.format, shown, state_.done, plan_.run));
    }
    if (!loads.empty()) {
      const std::string verdict = health_.add(state_.done.steps, interval_.steps(), loads);
      if (verdict != verdict_) tools_.log.info(verdict_ = verdict);
      // Asked at lines alone, which have the counts: of all steps since it was asked last.
      if (cadences_[kExperts].due(experts_asked_, state_.done, seconds_since_start())) {
        event(experts_record(loads));
      }
      experts_asked_ = state_.done;
    }
    interval_.clear();
  }
  jsonl_->append(r.json() + "\n");
  if (board_ != nullptr) board_->scalars(state_.done.steps, r.scalars());
}

void Trainer::evaluate_all() {
  const PulseScope scope(pulse_, Phase::kEval);
  tools_.faults.at("eval", state_.done.steps);
  for (size_t i = 0; i < data_.valid.size(); ++i) {
    if (stop_asked()) return;  // the stop comes first
    const auto& [name, set] = data_.valid[i];
    const double loss = evaluate_set(name, *set);
    if (i == 0) score_ = loss;
  }
  sample_all();
  scored_step_ = state_.done.steps;
  if (data_.valid.empty()) return;
  if (*score_ >= state_.best.value_or(INFINITY)) return;
  state_.best = score_;
  if (recipe_.checkpoint.keep_best > 0 && state_.done.steps > 0) {
    save("best validation loss", recipe_.checkpoint.when_busy);
  }
}

double Trainer::evaluate_set(const std::string& name, const Dataset& set) {
  const auto begin = Clock::now();
  const SetScore score =
      score_set(*learner_, set,
                {.rows = recipe_.eval.batch > 0 ? recipe_.eval.batch : plan_.micro_batch,
                 .batches = recipe_.eval.batches,
                 .tokenizer = tokenizer_.get(),
                 .stop = [this] { return stop_asked(); }});
  const double loss = score.loss();
  Record r;
  r.add("event", std::string_view("eval"));
  r.add("set", name);
  r.add("val/loss", loss);
  r.add("val/ppl", score.perplexity());
  if (score.bytes > 0) r.add("val/bits_per_byte", score.bits_per_byte());
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  r.add("seconds", seconds);
  tools_.log.info(
      "eval step " + std::to_string(state_.done.steps) + "  " + name + "  loss " + fixed(loss, 4) +
      "  ppl " + fixed(r.scalar("val/ppl"), 2) +
      (score.bytes > 0 ? "  bits/byte " + fixed(r.scalar("val/bits_per_byte"), 4) : "") + "  " +
      fixed(seconds, 1) + " s");
  if (board_ != nullptr) {
    board_->scalars(state_.done.steps, {{"val/" + name + "/loss", loss}});
  }
  event(std::move(r));
  return loss;
}

void Trainer::sample_all() {
  for (const std::string& prompt : recipe_.eval.prompts) {
    if (stop_asked()) return;
    const std::string text = sample(*learner_, *tokenizer_, prompt,
                                    {.tokens = recipe_.eval.sample_tokens,
                                     .temperature = recipe_.eval.temperature,
                                     .top_k = recipe_.eval.sample_top_k,
                                     .seed = recipe_.train.seed,
                                     .window = recipe_.data.sequence});
    tools_.log.info("sample step " + std::to_string(state_.done.steps) + ": " + text);
    if (board_ != nullptr) board_->text(state_.done.steps, "sample", text);
    Record r;
    r.add("event", std::string_view("sample"));
    r.add("prompt", prompt);
    r.add("text", text);
    event(std::move(r));
  }
}

void Trainer::check_replicas() {
  if (ranks_.alone()) return;
  const auto begin = Clock::now();
  require_equal_replicas(learner_->store(), ranks_);
  Record r;
  r.add("event", std::string_view("replicas"));
  r.add("seconds", std::chrono::duration<double>(Clock::now() - begin).count());
  event(std::move(r));
}

void Trainer::save(const std::string& why, WhenBusy when_busy) {
  if (saved_step_ == state_.done.steps) return;
  const PulseScope scope(pulse_, Phase::kSave);
  const std::string step = "step " + std::to_string(state_.done.steps);
  const bool may_skip = when_busy == WhenBusy::kSkip && state_.done.steps < plan_.run.steps;
  // On some rank: all leave the same save out.
  if (may_skip && ranks_.summed({saver_->busy() ? 1. : 0.})[0] > 0) {
    if (!first_) return;
    return tools_.log.warning(step + " is not saved: the save before is still being written");
  }
  const auto begin = Clock::now();
  if (!recipe_.run.check_replicas) check_replicas();
  state_.rebalance = learner_->rebalance_state();
  std::ostringstream scalars;
  write_json(scalars, state_);
  SaveInfo info{.step = state_.done.steps,
                .scalars = scalars.str(),
                .fingerprint = fingerprint_,
                .bad = ranks_.summed({learner_->weights_finite() ? 0. : 1.})[0] > 0,
                .force = tools_.force,
                .score = scored_step_ == state_.done.steps ? score_ : std::nullopt};
  info.stalled = std::chrono::duration<double>(Clock::now() - begin).count();
  saver_->save(tensors_, info);
  saved_step_ = state_.done.steps;
  tools_.log.debug("save of " + step + " (" + why + ")");
}

void Trainer::note_saves() {
  for (const SaveResult& result : saver_->take_results()) {
    if (!result.skipped.empty()) {
      tools_.log.warning("step " + std::to_string(result.step) + " not saved: " + result.skipped);
      continue;
    }
    state_.save_seconds = result.stall_seconds + result.write_seconds;
    warn_of_slow_save(state_.save_seconds);
    newest_ = result.folder;
    tools_.log.info("saved " + result.folder + ": " + readable_bytes(result.bytes) + " in " +
                    fixed(state_.save_seconds, 1) + " s");
    Record r;
    r.add("event", std::string_view("save"));
    r.add("saved", result.step);
    r.add("bytes", result.bytes);
    r.add("stall_s", result.stall_seconds);
    r.add("write_s", result.write_seconds);
    event(std::move(r));
  }
}

bool Trainer::out_of_time() const {
  if (recipe_.run.time_limit.ns == 0) return false;
  const double needed = 1.5 * state_.save_seconds + last_step_seconds_;
  return seconds_since_start() + needed >= recipe_.run.time_limit.seconds();
}

RunEnd Trainer::stop(const std::string& why) {
  tools_.steps.hide();
  tools_.log.info(why + ": stopping after step " + std::to_string(state_.done.steps));
  save(why, WhenBusy::kWait);
  saver_->wait();
  note_saves();
  Record r;
  r.add("event", std::string_view("stop"));
  r.add("why", why);
  event(std::move(r));
  tools_.log.info("step " + std::to_string(state_.done.steps) + " done, saved: " + newest_ +
                  ". Continue with: " + tools_.continue_with);
  return RunEnd::kStopped;
}

std::string Trainer::train_on() const {
  if (tools_.continue_with.empty()) return {};
  return ". To train on: " +
         twice_as_long(recipe_, std::max(plan_.run, state_.done), tools_.continue_with);
}

RunEnd Trainer::finish() {
  const bool wanted = recipe_.eval.every.value > 0 || recipe_.eval.at_start;
  if (wanted && scored_step_ != state_.done.steps) evaluate_all();
  save("end", WhenBusy::kWait);
  saver_->wait();
  note_saves();
  Record r;
  r.add("event", std::string_view("end"));
  event(std::move(r));
  pulse_.begin(Phase::kExit);
  tools_.faults.at("exit", state_.done.steps);
  if (!first_) return RunEnd::kFinished;
  std::string report = "none";
  try {
    report = write_report(tools_.fs, recipe_.checkpoint.dir);
  } catch (const Error& error) {  // a log that a full disk has cut ends no run that is done
    tools_.log.warning(std::string("no report is written: ") + error.what());
  }
  tools_.log.info("finished " + std::to_string(state_.done.steps) + " steps, " +
                  short_number(static_cast<double>(state_.done.tokens)) + " tokens in " +
                  short_time(state_.seconds) + "; report: " + report + train_on());
  return RunEnd::kFinished;
}

void Trainer::event(Record record) {
  if (!first_) return;
  record.add("step", state_.done.steps);
  record.add("time", unix_seconds());
  jsonl_->append(record.json() + "\n");
}

std::string Trainer::newest_checkpoint() const {
  return newest_;
}

double Trainer::seconds_since_start() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

}  // namespace troupe
