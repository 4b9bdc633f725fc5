// What a step is made of, whatever its schedule.
#pragma once

#include <vector>

namespace troupe {

struct StepWork {
  int chunks = 0;        // of the whole model
  int microbatches = 1;  // that each replica works through
  int ranks = 1;
  std::vector<int> recomputed = {};  // chunks whose forward is light and done again in backward
  bool snapshot = false;             // the step ends by copying its state out
};

}  // namespace troupe
