// Where a value that is not finite came from, of a step that has failed: its passes are replayed and
// looked at in the order in which a step computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/nn/model/model.h"
#include "troupe/schedule/action.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/step/executor.h"
#include "troupe/train/step/feed.h"

namespace troupe {

class NonfiniteSearch {
 public:
  // `training`, `forward`: this rank's lists for as many microbatches as the step had. All outlive
  // it.
  NonfiniteSearch(Model& model, ParamStore& store, Executor& executor,
                  const ParallelState& parallel, const std::vector<Action>& training,
                  const std::vector<Action>& forward)
      : model_(model),
        store_(store),
        executor_(executor),
        parallel_(parallel),
        training_(training),
        forward_(forward) {}

  // The first of all ranks, and whether a replay repeats it: "rank 1, forward of layer 3, ...".
  // Every rank calls, with the step's input.
  std::string first(const Feed& feed, const StepInput& input) const;

 private:
  // In the order in which a step computes.
  enum class Stage { kWeights, kForward, kBackward, kSum, kNone };
  struct Finding {
    Stage stage = Stage::kNone;
    int64_t order = 0;  // within the stage
    std::string what = {};

    std::string key() const;              // fixed length; sorts by the order of computation
    void first_of(const Finding& other);  // keeps the earlier of the two
  };

  Finding bad_forward(const Feed& feed, const StepInput& input) const;
  Finding bad_gradient(StepInput input) const;

  Model& model_;
  ParamStore& store_;
  Executor& executor_;
  const ParallelState& parallel_;
  const std::vector<Action>& training_;
  const std::vector<Action>& forward_;
};

}  // namespace troupe
