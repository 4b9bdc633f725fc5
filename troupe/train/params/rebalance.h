// parallel.rebalance: at an interval in steps, computes a new placement of each MoE layer's experts
// (distributed/params/balanced_expert_placement.h) from the choices of those steps. The experts of a layer
// move if that lowers max/mean of the ranks' rows by at least `gain`; otherwise they stay where
// they are.
//
// The result of a step depends on the placement only by the order of sums (with `exact` dispatch,
// only in the gradient norm). Every rank keeps its number of experts, so no shape changes. Replicas
// of experts use the same placement: rows are counted over all ranks. Every rank knows the rows and
// placements of all layers, those of other pipeline stages too, and takes the same decision.
//
// Checkpoints are in global coordinates; of this they keep a RebalanceState only. A resumed run
// that rebalances and shares experts over as many ranks continues with the saved placement and
// counts; in any other layout experts begin in their default places.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/nn/model/model.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/params/rebalance_state.h"

namespace troupe {

// "experts moved after step 40: layer 3: 5 of 64, max/mean rows of a rank 1.62 to 1.08; ..."
std::string moved_line(int64_t step, int64_t experts, const std::vector<ExpertsMoved>& moved);

class Rebalancer {
 public:
  // A MoE layer of the model, on this rank or not, and the placement with which a run begins.
  struct Place {
    int64_t unit = 0;
    ExpertPlacement placement;
  };
  // `all_sum` over all ranks. Model and store outlive it; `places` are in the model's order, and
  // the layers' dispatchers share experts over `experts`.
  Rebalancer(RebalanceConfig config, Model& model, const std::vector<Place>& places,
             ParamStore& store, std::shared_ptr<ProcessGroup> experts, SumOver all_sum);

  // Each rank, after each step: counts it, and moves experts if `step` steps are a multiple of
  // `every`. On a GPU the host waits for the counts then, and only then.
  std::vector<ExpertsMoved> after_step(int64_t step, const StepOutput& output);

  RebalanceState state() const;               // each rank calls
  bool restore(const RebalanceState& state);  // the same; false: it is of another layout

 private:
  struct Layer {
    int64_t unit = 0;
    ExpertPlacement placement;
    MoeLayer* moe = nullptr;           // null: another stage's
    at::Tensor rows_E = {};            // int64, of this rank, since the last change
    std::vector<int64_t> before = {};  // [E] of all ranks, counted before this process began
  };
  std::vector<std::vector<int64_t>> rows_of_all() const;  // of each layer
  void move(
      const std::vector<std::pair<Layer*, ExpertPlacement>>& to);  // the experts that are here

  RebalanceConfig config_;
  ParamStore& store_;
  std::shared_ptr<ProcessGroup> experts_;
  SumOver all_sum_;
  std::vector<Layer> layers_;
};

}  // namespace troupe
