#include "troupe/train/layout/resolved_run.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "troupe/train/forecast/agree_layout.h"
#include "troupe/train/forecast/forecast.h"

namespace troupe {
namespace {

ParallelConfig one_rank(const ParallelConfig& given) {
  ParallelConfig out = with_closed_axes({});
  out.backend = given.backend;
  return out;
}

// `micro_batch`: absent where nobody chose it.
ResolvedRun with_layout(Recipe recipe, const ParallelConfig& parallel,
                        std::optional<int64_t> micro_batch = {}) {
  const ParallelConfig given = std::exchange(recipe.parallel, parallel);
  if (micro_batch) recipe.train.micro_batch = micro_batch;
  const RunPlan plan = plan_of(recipe);
  recipe.train.micro_batch = plan.micro_batch;
  ResolvedRun out{std::move(recipe)};
  out.given_parallel = given;
  out.plan = plan;
  return out;
}

}  // namespace

ResolvedRun resolve(const Recipe& recipe, const LayoutChoice& choice) {
  if (recipe.train.teacher) teacher_model(recipe);
  ResolvedRun out = with_layout(recipe, choice.parallel, choice.micro_batch);
  out.layout_why = choice.why;
  out.micro_why = choice.micro_why;
  return out;
}

ResolvedRun resolve(const Recipe& recipe, World& world) {
  return resolve(recipe, agree_layout(recipe, world));
}

ResolvedRun resolve_alone(const Recipe& recipe) {
  return with_layout(recipe, one_rank(recipe.parallel));
}

ResolvedRun resolve_alone(const Recipe& recipe, double memory) {
  if (recipe.train.teacher) teacher_model(recipe);
  const MicroBatchChoice micro =
      choose_micro_batch(recipe, {.memory = memory, .on_gpu = runs_on_gpu(recipe)});
  ResolvedRun out = with_layout(recipe, one_rank(recipe.parallel), micro.sequences);
  out.micro_why = micro.why;
  return out;
}

}  // namespace troupe
