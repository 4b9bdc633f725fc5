// A recipe's step as data: its units, and the schedule of actions of each rank. The learner
// executes it; the planner simulates it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "troupe/nn/model/model.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// For each parameter that is here, by its name, the first unit of the whole model that reads it,
// here or on another rank: the embedding of its table.
std::map<std::string, int> first_readers(Model& model);

// The stages of a layout, which must be resolved and have several: which unit is where, and the
// order of a rank's computations. The rest of the work is left at its defaults.
StepWork stages_of(const ParallelConfig& parallel, const ModelConfig& model);

// Chunks are the model's units; of one microbatch and one replica. `parallel` must be resolved.
StepWork step_work(const Recipe& recipe, const ParallelConfig& parallel);

// The schedule for work.replicas ranks; `parallel` must be resolved.
Schedule step_schedule(const ParallelConfig& parallel, const StepWork& work);

// One rank's part of a batch of `all` microbatches. Every rank runs `steps` of them; those beyond
// its own are empty.
struct RankShare {
  int64_t first = 0, count = 0, steps = 0;
};
RankShare share_of(int64_t all, int64_t rank, int64_t ranks);

}  // namespace troupe
