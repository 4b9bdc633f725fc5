#include "troupe/train/loop/save_control.h"

#include <sstream>
#include <utility>

#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/state/group_of_state.h"
#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/text/readable.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/save_time.h"
#include "troupe/train/params/replicas.h"

namespace troupe {

SaveControl::SaveControl(const RunContext& run, Learner& learner, RunLogger& logger)
    : run_(run), learner_(learner), logger_(logger) {}

void SaveControl::resumed(int64_t step, const std::string& folder) {
  resumed_step_ = saved_step_ = step;
  newest_ = folder;
}

void SaveControl::leave_out(BaseCheckpoint base, std::set<std::string> own) {
  base_ = std::move(base);
  own_frozen_ = std::move(own);
}

void SaveControl::open(const std::string& run_id, const Fingerprint& fingerprint) {
  fingerprint_ = fingerprint;
  saver_ =
      std::make_unique<Saver>(run_.recipe.checkpoint, run_id, checkpoint_group(run_.parallel()),
                              run_.log(), run_.tools.fs, run_.tools.faults);
  saver_->go_on_from(resumed_step_);
}

void SaveControl::require_space() const {
  const CheckpointConfig& config = run_.recipe.checkpoint;
  const std::string warning = space_warning(config.dir, checkpoint_bytes(), config.keep);
  if (warning.empty()) return;
  if (config.strict) fail(Code::kNoSpace, config.dir, warning);
  run_.log().warning(warning);
}

void SaveControl::list_tensors() {
  tensors_ = {};
  learner_.checkpoint().add_to(tensors_, {.frozen_of = base_ ? &own_frozen_ : nullptr});
}

void SaveControl::foresee() {
  const double grace = run_.recipe.run.grace.seconds();
  if (grace <= 0) return;
  constexpr double kSlowDisk = 2e6;  // bytes/s; a checkpoint that this writes in time is not timed
  const int64_t bytes = checkpoint_bytes();
  double seconds = run_.state.save_seconds;
  if (seconds == 0 && static_cast<double>(bytes) > kSlowDisk * grace) {
    seconds = write_seconds(run_.tools.fs, run_.recipe.checkpoint.dir, bytes).value_or(0);
  }
  if (seconds == 0) return;
  run_.log().info("a checkpoint of " + in_gib(static_cast<double>(bytes)) + " GiB takes about " +
                  fixed(seconds, 1) + " s here; run.grace is " + to_text(run_.recipe.run.grace));
  warn_of_slow_save(seconds);
}

void SaveControl::warn_of_slow_save(double seconds) {
  const Duration grace = run_.recipe.run.grace;
  if (grace.ns == 0 || seconds <= grace.seconds() || std::exchange(warned_, true)) return;
  run_.log().warning("a checkpoint takes " + fixed(seconds, 1) + " s, longer than the " +
                     to_text(grace) +
                     " of run.grace: after SIGTERM the steps since the previous checkpoint would "
                     "be lost. Save more "
                     "often (checkpoint.every), or give the launcher a longer grace period");
}

void SaveControl::save(const std::string& why, WhenBusy when_busy, std::optional<double> score) {
  TrainState& state = run_.state;
  const ParallelState& parallel = run_.parallel();
  if (saved_step_ == state.done.steps) return;
  keep_folder();
  const PulseScope scope(run_.pulse(), Phase::kSave);
  const bool may_skip =
      when_busy == WhenBusy::kSkip && state.done.steps < run_.recipe.plan.run.steps;
  // If any rank is busy, all skip this save.
  if (may_skip && parallel.all_reduce({saver_->busy() ? 1. : 0.})[0] > 0) {
    if (!run_.writes_logs()) return;
    return run_.log().warning(run_.step() +
                              " is not saved: the previous save is still being written");
  }
  const auto begin = RunContext::Clock::now();
  if (!run_.recipe.run.check_replicas) check_replicas(run_, learner_, logger_);
  state.rebalance = learner_.rebalance_state();
  std::ostringstream scalars;
  write_json(scalars, state);
  SaveInfo info{.step = state.done.steps,
                .scalars = scalars.str(),
                .fingerprint = fingerprint_,
                .base = base_,
                .bad = parallel.all_reduce({learner_.weights_finite() ? 0. : 1.})[0] > 0,
                .force = run_.tools.force,
                .score = score};
  info.stalled = RunContext::since(begin);
  saver_->save(tensors_, info);
  saved_step_ = state.done.steps;
  run_.log().debug("save of " + run_.step() + " (" + why + ")");
}

void SaveControl::note_saves() {
  for (const SaveResult& result : saver_->take_results()) {
    if (!result.skipped.empty()) {
      run_.log().warning("step " + std::to_string(result.step) + " not saved: " + result.skipped);
      continue;
    }
    run_.state.save_seconds = result.stall_seconds + result.write_seconds;
    warn_of_slow_save(run_.state.save_seconds);
    newest_ = result.folder;
    run_.log().info("saved " + result.folder + ": " + readable_bytes(result.bytes) + " in " +
                    fixed(run_.state.save_seconds, 1) + " s");
    LogRecord r;
    r.add("event", std::string_view("save"));
    r.add("saved", result.step);
    r.add("bytes", result.bytes);
    r.add("stall_s", result.stall_seconds);
    r.add("write_s", result.write_seconds);
    logger_.event(std::move(r));
  }
}

void check_replicas(const RunContext& run, Learner& learner, RunLogger& logger) {
  if (run.parallel().alone()) return;
  const auto begin = RunContext::Clock::now();
  require_equal_replicas(learner.store(), run.parallel());
  LogRecord r;
  r.add("event", std::string_view("replicas"));
  r.add("seconds", RunContext::since(begin));
  logger.event(std::move(r));
}

}  // namespace troupe
