// What a step is made of, whatever its schedule.
#pragma once

#include <utility>
#include <vector>

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
  // under the name of the first.
  std::vector<std::pair<int, int>> tied = {};
};

void validate(const StepWork& work);  // throws

// For each chunk the first of those that it shares parameters with: itself unless it is tied.
std::vector<int> owners(const StepWork& work);

}  // namespace troupe
