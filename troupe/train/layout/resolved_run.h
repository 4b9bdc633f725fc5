// A recipe as it runs: its sections with every choice made, and what follows from them. Made once,
// before any group, tensor or data set; what a run does reads this value and no other layout.
//
//   run = resolve(recipe, world)             a start of ranks: all of them call it
//   run = resolve_alone(recipe, memory)      one process that trains
//   run = resolve_alone(recipe)              one process that does not
//   run = resolve(recipe, choose_layout(..)) ranks that are not here, for `troupe plan`
#pragma once

#include <string>

#include "troupe/distributed/world/world.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// `parallel` is resolved, and train.micro_batch has a value. On one rank `parallel` is the default
// layout with all axes 1: of the recipe's keys only `backend` is kept, which says what device may
// be used.
struct ResolvedRun : Recipe {
  ParallelConfig given_parallel = {};  // the recipe's own, for messages
  RunPlan plan = {};                   // batch, microbatch, length
  std::string layout_why = {};         // a line for the log; empty: one rank
  std::string micro_why = {};          // "given", "chosen: ..."
};

// The layout that all ranks agree on (agree_layout.h). Throws one Error of all that does not fit,
// and as teacher_model() does where the recipe has a teacher.
ResolvedRun resolve(const Recipe& recipe, World& world);
// `choice` of choose_layout() or agree_layout().
ResolvedRun resolve(const Recipe& recipe, const LayoutChoice& choice);

// One process: an open microbatch is the first of micro_batches().
ResolvedRun resolve_alone(const Recipe& recipe);
// An open microbatch is the largest whose training fits `memory`, in bytes of the recipe's device
// (choose_micro_batch()); 0: unknown. Throws as above for a teacher.
ResolvedRun resolve_alone(const Recipe& recipe, double memory);

// It is `run.plan`.
RunPlan plan_of(const ResolvedRun& run) = delete;

}  // namespace troupe
