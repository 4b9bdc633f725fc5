#include "troupe/train/cadences.h"

#include <algorithm>
#include <vector>

namespace troupe {

Cadences::Cadences(const RunContext& run, int64_t resumed_step)
    : run_(run),
      first_step_(std::max<int64_t>(resumed_step, 0)),
      line_(run.recipe.log.every),
      record_(record_interval(run.recipe)),
      eval_(run.recipe.eval.every),
      save_time_(Span{run.recipe.checkpoint.every.ns, Span::Unit::kTime}),
      save_steps_(steps(run.recipe.checkpoint.every_steps)),
      replicas_(run.recipe.run.check_replicas.value_or(Span())) {}

StepDuties Cadences::after_step(const Position& before, bool save_failed) {
  const double now = run_.seconds();
  const Position& done = run_.state.done;
  const std::vector<int64_t>& at = run_.recipe.checkpoint.at;
  // All cadences are asked, so that none falls behind.
  const bool by_time = save_time_.due(before, done, now);
  const bool by_steps = save_steps_.due(before, done, now);
  const bool asked = run_.tools.signals.take_save();
  StepDuties due{.line = line_due(before, now),
                 .record = record_.due(before, done, now),
                 .eval = eval_.due(before, done, now),
                 .replicas = replicas_.due(before, done, now),
                 .save = asked || by_time || by_steps ||
                         std::find(at.begin(), at.end(), done.steps) != at.end(),
                 .status = run_.tools.signals.take_status(),
                 .save_failed = save_failed,
                 .why_save = asked ? "SIGUSR1" : "interval"};
  const ParallelState& parallel = run_.parallel();
  if (parallel.alone()) return due;
  const auto of_first = [this](bool x) { return run_.writes_logs() && x ? 1.0 : 0.0; };
  const auto any = [](bool x) { return x ? 1.0 : 0.0; };
  const std::vector<double> all =
      parallel.all_reduce({of_first(due.line), of_first(due.record), of_first(due.eval),
                           any(asked) + of_first(due.save), any(due.status), any(due.save_failed),
                           of_first(due.replicas)});
  due.line = all[0] > 0;
  due.record = all[1] > 0;
  due.eval = all[2] > 0;
  due.save = all[3] > 0;
  due.status = all[4] > 0;
  due.save_failed = all[5] > 0;
  due.replicas = all[6] > 0;
  return due;
}

bool Cadences::line_due(const Position& before, double now) {
  const int64_t step = run_.state.done.steps;
  bool due = step == run_.plan.run.steps;
  if (run_.recipe.log.every.value > 0) {
    due |= line_.due(before, run_.state.done, now);
  } else {
    due |= step - first_step_ <= 10 || now - last_line_ >= 1;
  }
  if (due) last_line_ = now;
  return due;
}

}  // namespace troupe
