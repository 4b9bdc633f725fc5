// parallel.rebalance: every so many steps the experts of each MoE layer are laid over their ranks
// anew (distributed/params/balanced_placement.h), by what was chosen in those steps. They move
// where max/mean of the ranks' rows falls by `gain` at least; a layer whose experts would not stays
// as it is.
//
// A step computes the same wherever experts lie, but for the order of sums (`exact` dispatch: but
// for that of the gradient norm). Every rank holds as many experts as before, so no shape changes.
// Replicas of experts lie alike: rows are counted over all ranks.
//
// Checkpoints are in global coordinates and know nothing of this but a RebalanceState: a run that
// goes on, rebalances and shares experts over as many ranks lies as the saved one did and counts
// on; in any other layout experts begin in their default places.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/nn/models/model.h"
#include "troupe/nn/moe_layer.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/params/rebalance_state.h"

namespace troupe {

// "experts moved after step 40: layer 3: 5 of 64, max/mean rows of a rank 1.62 to 1.08; ..."
std::string moved_line(int64_t step, int64_t experts, const std::vector<ExpertsMoved>& moved);

class Rebalancer {
 public:
  // `all_sum` over all ranks. Model and store outlive it; the layers' dispatchers share experts
  // over `experts`.
  Rebalancer(RebalanceConfig config, Model& model, ParamStore& store,
             std::shared_ptr<RankGroup> experts, SumOver all_sum);

  // Each rank, after each step: counts it, and moves experts if `step` steps are a multiple of
  // `every`. On a GPU the host waits for the counts then, and only then.
  std::vector<ExpertsMoved> after_step(int64_t step, const StepOutput& output);

  RebalanceState state() const;               // each rank calls
  bool restore(const RebalanceState& state);  // the same; false: it is of another layout

 private:
  struct Layer {
    int64_t unit = 0;
    MoeLayer* moe = nullptr;
    at::Tensor rows_E = {};            // int64, of this rank, since the last change
    std::vector<int64_t> before = {};  // [E] of all ranks, counted before this process began
  };
  std::vector<std::vector<int64_t>> rows_of_all() const;  // of each layer
  void move(const std::vector<std::pair<Layer*, Placement>>& to);

  RebalanceConfig config_;
  ParamStore& store_;
  std::shared_ptr<RankGroup> experts_;
  SumOver all_sum_;
  std::vector<Layer> layers_;
};

}  // namespace troupe
