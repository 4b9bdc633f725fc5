// A recipe's step as data: what it consists of, and the list that each rank issues. The learner
// runs it, the planner costs it.
#pragma once

#include <cstdint>
#include <map>

#include "troupe/nn/models/model.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// For each parameter the first unit that reads it.
std::map<const Param*, int> first_readers(Model& model);

// Chunks are the model's units; of one microbatch and one replica.
StepWork step_work(Model& model, const Recipe& recipe);

// How work.replicas ranks run it; `parallel` is resolved.
Schedule step_schedule(const ParallelConfig& parallel, const StepWork& work);

// Of a batch's `all` microbatches those of one rank. Every rank runs steps() of them, those past
// its own being empty.
struct RankShare {
  int64_t first = 0, count = 0, steps = 0;
};
RankShare share_of(int64_t all, int64_t rank, int64_t ranks);

}  // namespace troupe
