#include "troupe/train/loop/trainer.h"

#include <algorithm>

#include "troupe/core/text/readable.h"
#include "troupe/train/loop/resume_checks.h"
#include "troupe/train/loop/routing_log.h"
#include "troupe/train/report/report.h"

namespace troupe {

RunEnd Trainer::run() {
  if (state_.done.steps >= recipe_.plan.run.steps) {
    tools_.log.info("already finished at step " + std::to_string(state_.done.steps) + train_on());
    if (context_.writes_logs()) clear_leftovers(tools_.fs, recipe_.checkpoint.dir, tools_.log);
    pulse_.begin(Phase::kExit);
    return RunEnd::kAlreadyFinished;
  }
  open_run();
  if (recipe_.eval.at_start && state_.done.steps == 0) after_step_->evaluate();
  while (state_.done.steps < recipe_.plan.run.steps) {
    if (parallel_.alone()) stop_.stop_for(stop_.own_reason());
    if (!stop_.reason().empty()) return stop();
    const auto begin = Clock::now();
    const double waited = pulse_.waited_seconds();
    const std::optional<Feed> feed = next_feed();
    // Some rank has been asked to stop: all do, before the same step.
    if (!stop_.reason().empty()) return stop();
    one_step(*feed, begin, pulse_.waited_seconds() - waited);
  }
  return finish();
}

// The whole batch's sizes and weight are known before it is cut into this rank's part.
std::optional<Feed> Trainer::next_feed() {
  pulse_.begin(Phase::kBatch);
  tools_.faults.at("batch", state_.done.steps);
  return loader_->next(stop_);
}

// `waited`: seconds for its batch in which this rank waited for others.
void Trainer::one_step(const Feed& feed, Clock::time_point begin, double waited) {
  const double batch_seconds = RunContext::since(begin);
  const Position before = state_.done;
  Position end = before;
  ++end.steps;
  end.samples += feed.samples;
  end.tokens += feed.tokens;
  profile_->begin(end.steps);
  const StepReport report = step_with_routing(feed, after_step_->votes(before, end));
  pulse_.done(state_.done.steps);
  const double seconds = RunContext::since(begin);
  profile_->end(state_.done.steps);
  state_.seconds += seconds;
  stop_.step_took(seconds);
  logger_->add_step(report, seconds, batch_seconds, batch_seconds - waited);
  note(report, feed);
  after_step_->run(report, feed, seconds);
}

void Trainer::note(const StepReport& report, const Feed& feed) {
  if (report.finite) {
    const bool first = state_.loss_ema == 0;
    state_.loss_ema = first ? report.loss : 0.98 * state_.loss_ema + 0.02 * report.loss;
  }
  logger_->note_step(report, feed);
  if (!report.moved.empty()) saves_->list_tensors();
}

// A step that takes the routers' choices from a trace, or keeps them (R15).
StepReport Trainer::step_with_routing(const Feed& given, const Learner::Votes& votes) {
  const int64_t step = state_.done.steps + 1, every = recipe_.log.routing;
  const bool keeps = every > 0 && step % every == 0;
  if (!keeps && recipe_.run.replay.empty()) return learner_->step(given, state_, votes);
  Feed feed = given;
  feed.keep_choices = keeps;
  if (!recipe_.run.replay.empty()) {
    replay_routing(recipe_.run.replay, step, recipe_.model, feed);
  }
  StepReport report = learner_->step(feed, state_, votes);
  if (!keeps) return report;
  pulse_.begin(Phase::kLog);
  for (LayerChoices& choices : report.output.choices) {
    if (!recipe_.log.routing_logits) choices.logits_TE = at::Tensor();
  }
  write_routing(tools_.fs,
                {.folder = recipe_.checkpoint.dir + "/routing",
                 .step = step,
                 .rank = parallel_.rank(),
                 .ranks = parallel_.size()},
                feed, report.output, recipe_.model.moe.experts);
  report.output.choices.clear();
  return report;
}

RunEnd Trainer::stop() {
  tools_.steps.keep();
  tools_.log.info(stop_.reason() + ": stopping after step " + std::to_string(state_.done.steps));
  after_step_->save_last(stop_.reason());
  LogRecord r;
  r.add("event", std::string_view("stop"));
  r.add("why", stop_.reason());
  logger_->event(std::move(r));
  pulse_.begin(Phase::kExit);
  tools_.log.info("step " + std::to_string(state_.done.steps) +
                  " done, saved: " + saves_->newest() + ". Continue with: " + tools_.continue_with);
  return RunEnd::kStopped;
}

std::string Trainer::train_on() const {
  if (tools_.continue_with.empty()) return {};
  return ". To train on: " +
         twice_as_long(recipe_, std::max(recipe_.plan.run, state_.done), tools_.continue_with);
}

RunEnd Trainer::finish() {
  const bool wanted = recipe_.eval.every.value > 0 || recipe_.eval.at_start;
  if (wanted && !evaluation_->done_at(state_.done.steps)) after_step_->evaluate();
  after_step_->save_last("end");
  LogRecord r;
  r.add("event", std::string_view("end"));
  logger_->event(std::move(r));
  pulse_.begin(Phase::kExit);
  tools_.faults.at("exit", state_.done.steps);
  if (!context_.writes_logs()) return RunEnd::kFinished;
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

}  // namespace troupe
