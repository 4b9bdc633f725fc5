// Proves a run's own step on all its ranks before it starts (schedule/prove.h): `check`, `plan` and
// each start of several ranks do. Milliseconds; of very many ranks or microbatches a part is proven.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct LayoutProof {
  int64_t ranks = 1, microbatches = 1;  // of the step
  int64_t proven = 1;                   // microbatches; 0: none, the step has too many events
  int64_t events = 0;
  int capacity = 0;  // Proof::capacity
};

// `parallel` resolved; `micro_batch` sequences of a batch of `batch`. Throws E9001 with what is not
// sound in the step.
LayoutProof prove_layout(const Recipe& recipe, const ParallelConfig& parallel, int64_t batch,
                         int64_t micro_batch, int64_t ranks);

// "8 ranks, 4 microbatches: 5312 events end in every order"
std::string to_text(const LayoutProof& proof);

}  // namespace troupe
