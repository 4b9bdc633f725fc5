// Counts which tokens and sources a trained model sends to which expert.
#pragma once

#include <cstdint>

#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokens/dataset.h"
#include "troupe/train/observe/expert_use.h"
#include "troupe/train/step/learner.h"

namespace troupe {

struct MeasureExperts {
  int64_t samples = 64;  // from the set's first on
  int64_t rows = 1;      // of a forward pass
  int64_t tokens = 8;    // to name for each expert
  int64_t seen = 10;     // a token that is named was seen so often
};
// Sources are those of set.uses(); without a tokenizer tokens have ids alone. One rank's model.
ExpertUse measure_experts(Learner& learner, const Dataset& set, const Tokenizer* tokenizer,
                          const MeasureExperts& options);

}  // namespace troupe
