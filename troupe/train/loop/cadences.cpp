#include "troupe/train/loop/cadences.h"

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

StepDuties Cadences::due(const Position& before, const Position& after) {
  const double now = run_.seconds();
  const std::vector<int64_t>& at = run_.recipe.checkpoint.at;
  // All cadences are asked, so that none falls behind.
  const bool by_time = save_time_.due(before, after, now);
  const bool by_steps = save_steps_.due(before, after, now);
  const bool asked = run_.tools.signals.take_save();
  return {.line = line_due(before, after, now),
          .record = record_.due(before, after, now),
          .eval = eval_.due(before, after, now),
          .replicas = replicas_.due(before, after, now),
          .save = by_time || by_steps || std::find(at.begin(), at.end(), after.steps) != at.end(),
          .save_asked = asked,
          .status = run_.tools.signals.take_status(),
          .why_save = asked ? "SIGUSR1" : "interval"};
}

bool Cadences::line_due(const Position& before, const Position& after, double now) {
  bool due = after.steps == run_.plan.run.steps;
  if (run_.recipe.log.every.value > 0) {
    due |= line_.due(before, after, now);
  } else {
    due |= after.steps - first_step_ <= 10 || now - last_line_ >= 1;
  }
  if (due) last_line_ = now;
  return due;
}

}  // namespace troupe
