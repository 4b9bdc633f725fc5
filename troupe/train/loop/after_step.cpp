#include "troupe/train/loop/after_step.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <tuple>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// What rank 0's clock decides; a save also on the signal of any rank.
constexpr bool StepDuties::*kByRank0[] = {&StepDuties::line, &StepDuties::record, &StepDuties::eval,
                                          &StepDuties::replicas, &StepDuties::save};
constexpr bool StepDuties::*kByAny[] = {&StepDuties::save_asked, &StepDuties::status,
                                        &StepDuties::save_failed};

}  // namespace

AfterStep::AfterStep(const RunContext& run, const Parts& parts, int64_t resumed_step)
    : run_(run),
      parts_(parts),
      first_step_(std::max<int64_t>(resumed_step, 0)),
      line_(run.recipe.log.every),
      record_(record_interval(run.recipe.log, run.recipe.plan.run)),
      eval_(run.recipe.eval.every),
      save_time_(Span{run.recipe.checkpoint.every.ns, Span::Unit::kTime}),
      save_steps_(steps(run.recipe.checkpoint.every_steps)),
      replicas_(run.recipe.run.check_replicas.value_or(Span())) {}

Learner::Votes AfterStep::votes(const Position& before, const Position& end) {
  before_ = before;
  end_ = end;
  if (run_.parallel().alone()) return {};
  return [this] { return own_votes(); };
}

void AfterStep::run(const StepReport& report, const Feed& feed, double seconds) {
  const StepDuties due = decide(run_.parallel().alone() ? own_votes() : report.votes);
  run_.pulse().begin(Phase::kLog);
  run_.tools.faults.at("log", run_.state.done.steps);
  parts_.saves.keep_folder();
  if (due.line || due.record) parts_.logger.write_record(report, feed, seconds, due.line);
  if (due.eval) evaluate();
  if (due.replicas) check_replicas(run_, parts_.learner, parts_.logger);
  if (due.save) save(due.why_save, run_.recipe.checkpoint.when_busy);
  if (due.save_failed) parts_.saves.wait();  // throws, on all ranks at one step
  parts_.saves.note_saves();
  if (due.status) parts_.logger.status(parts_.saves.newest());
}

// Once a step.
std::vector<double> AfterStep::own_votes() {
  own_ = own_duties();
  own_stop_ = parts_.stop.own_reason();
  const BatchLoader::Ahead ahead = parts_.loader.ahead();
  std::vector<double> out(ahead.begin(), ahead.end());
  out.push_back(own_stop_.empty() ? 0 : 1);
  for (const auto duty : kByRank0) out.push_back(run_.writes_logs() && own_.*duty ? 1 : 0);
  for (const auto duty : kByAny) out.push_back(own_.*duty ? 1 : 0);
  return out;
}

StepDuties AfterStep::own_duties() {
  const double now = run_.seconds();
  const std::vector<int64_t>& at = run_.recipe.checkpoint.at;
  // All cadences are asked, so that none falls behind.
  const bool by_time = save_time_.due(before_, end_, now);
  const bool by_steps = save_steps_.due(before_, end_, now);
  const bool asked = run_.tools.signals.take_save();
  return {.line = line_due(now),
          .record = record_.due(before_, end_, now),
          .eval = eval_.due(before_, end_, now),
          .replicas = replicas_.due(before_, end_, now),
          .save = by_time || by_steps || std::find(at.begin(), at.end(), end_.steps) != at.end(),
          .save_asked = asked,
          .status = run_.tools.signals.take_status(),
          .save_failed = parts_.saves.failed(),
          .why_save = asked ? "SIGUSR1" : "interval"};
}

bool AfterStep::line_due(double now) {
  bool due = end_.steps == run_.recipe.plan.run.steps;
  if (run_.recipe.log.every.value > 0) {
    due |= line_.due(before_, end_, now);
  } else {
    due |= end_.steps - first_step_ <= 10 || now - last_line_ >= 1;
  }
  if (due) last_line_ = now;
  return due;
}

StepDuties AfterStep::decide(const std::vector<double>& sums) {
  BatchLoader::Ahead ahead;
  constexpr size_t kStop = std::tuple_size_v<BatchLoader::Ahead>;
  TROUPE_CHECK(sums.size() == kStop + 1 + std::size(kByRank0) + std::size(kByAny), sums.size());
  std::copy_n(sums.begin(), kStop, ahead.begin());
  parts_.loader.agree(ahead);
  if (sums[kStop] > 0) {
    parts_.stop.stop_for(own_stop_.empty() ? "another rank was asked to stop" : own_stop_);
  }
  StepDuties out = own_;
  const double* value = &sums[kStop + 1];
  for (const auto duty : kByRank0) out.*duty = *value++ > 0;
  for (const auto duty : kByAny) out.*duty = *value++ > 0;
  out.save |= out.save_asked;
  return out;
}

void AfterStep::evaluate() {
  const bool best = parts_.evaluation.run();
  if (best && run_.recipe.checkpoint.keep_best > 0 && run_.state.done.steps > 0) {
    save("best validation loss", run_.recipe.checkpoint.when_busy);
  }
}

void AfterStep::save(const std::string& why, WhenBusy when_busy) {
  parts_.saves.save(why, when_busy, parts_.evaluation.score_at(run_.state.done.steps));
}

void AfterStep::save_last(const std::string& why) {
  save(why, WhenBusy::kWait);
  parts_.saves.wait();
  parts_.saves.note_saves();
}

}  // namespace troupe
