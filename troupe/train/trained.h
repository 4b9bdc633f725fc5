// A model that a run left behind, opened to be used.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troupe/train/learner.h"

namespace troupe {

struct Trained {
  Recipe recipe;
  std::string folder;  // of the checkpoint
  int64_t step = 0;
  std::unique_ptr<Faults> faults;  // none; the learner holds a reference
  std::unique_ptr<Learner> learner;
};

// `path` is a run's folder, of which the newest complete step is taken, or RUN/step-001200. The
// recipe is RUN/recipe.yaml, then each of `sets`. Throws E2007 without a recipe, E4002 without a
// checkpoint.
Trained open_trained(const std::string& path, const std::vector<std::string>& sets);

// A checkpoint's model into a learner, whose optimizer then begins anew; what a run has saved of
// its optimizer is passed over. A tensor that is missing or over is E4005.
Loaded load_weights(Learner& learner, const std::string& folder, LoadOptions options,
                    const Faults& faults, const Peers& peers = {});

}  // namespace troupe
