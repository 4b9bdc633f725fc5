// What a step is made of, whatever its schedule.
#pragma once

#include <utility>
#include <vector>

#include "troupe/schedule/order.h"

namespace troupe {

struct StepWork {
  int chunks = 0;        // of the whole model
  int microbatches = 1;  // that each replica works through
  int ranks = 1;         // that hold one replica of the model together: the lists of its schedule
  std::vector<int> recomputed = {};  // chunks whose forward is light and done again in backward
  bool snapshot = false;             // the step ends by copying its state out
  int replicas = 1;  // of the model, each with its own data; rank r of each runs list r
  // Pairs (a, b), a < b, of chunks that share parameters; each chunk is tied to one before it at
  // most. The parameters of all chunks so tied are gathered, freed, reduced and updated together,
  // under the name of the first. Where they are on several ranks, each rank gathers and frees its
  // own copy, and all of them reduce together, once a step.
  std::vector<std::pair<int, int>> tied = {};
  // A pipeline: a stage is a run of neighboring chunks on one rank. A stage may be empty; what goes
  // over it goes from the stage before straight to the stage behind.
  std::vector<int> stages = {};       // chunk -> stage, never falling; empty: all on one rank
  std::vector<int> stage_ranks = {};  // stage -> rank
  bool training = true;               // false: forwards alone, each microbatch's light
  int depth = 2;                      // sends of one channel that may be unfinished (deadlock.h)
  PipelineOrder order = PipelineOrder::kAuto;
  // Each backward that a forward of another microbatch follows runs beside it (OV9): one more graph
  // is held meanwhile. Only for the orders 1f1b and interleaved, and on one rank.
  bool beside = false;
  // An owner's update follows its last gradient, where ranks sum it the reduction behind its own;
  // U then ends the step and updates nobody again.
  bool updates_in_backward = false;
};

void validate(const StepWork& work);  // throws

// For each chunk the first of those that it shares parameters with: itself unless it is tied.
std::vector<int> owners(const StepWork& work);

// For each chunk the rank that runs it.
std::vector<int> chunk_ranks(const StepWork& work);

// For each owner whether its parameters are on several ranks of the pipeline; false for other
// chunks.
std::vector<bool> owners_on_several_ranks(const StepWork& work);

}  // namespace troupe
