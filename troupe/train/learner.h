// A model and what changes it: parameters, optimizer, the schedule of a step, and the guards in
// front of the weights. It knows no files, logs or clocks.
//
// One word with the host a step: loss and gradient norm, read before the update decides. A gradient
// that is not finite never reaches a weight. A step in which some rank had no room for all rows
// that came (model.moe.capacity.budget, C7) is done again with room for all, before anything is
// updated: all ranks learn of it by the same sum.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "troupe/checkpoint/checkpoint.h"
#include "troupe/data/dataset.h"
#include "troupe/train/executor.h"
#include "troupe/train/feed.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/params/rebalance.h"
#include "troupe/train/ranks.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/train_state.h"

namespace troupe {

class Learner {
 public:
  Learner(const Recipe& recipe, const c10::Device& device, const Faults& faults,
          std::shared_ptr<Ranks> ranks = std::make_shared<Ranks>());

  // One step over a global batch, this rank's part of it; brings `state` forward, also where the
  // weights stay as they are.
  StepReport step(const Feed& feed, TrainState& state);

  // The summed loss of a batch and its targets' weight, without changing anything. Each rank calls
  // with rows of its own, which may be none; the sums are of these alone.
  struct Sums {
    double loss = 0, weight = 0;
  };
  Sums evaluate(const TokenBatch& own);
  // [1, S] ids to [V] logits of the last one.
  at::Tensor next_logits(const at::Tensor& ids_1S);

  // Weights (f32 masters where there are), optimizer state, routers' state: what a checkpoint has,
  // as far as this rank owns it. `to_load`: where ranks own the same, the first of them alone, and
  // loaded() tells the others.
  struct Saved {
    bool weights_alone = false;
    bool to_load = false;
  };
  void add_to(CheckpointState& state, Saved what);
  void loaded(bool weights_alone);  // after a checkpoint filled what add_to named
  // Of the rebalancing of experts (train/params/rebalance.h); each rank calls. restore(), after
  // loaded(), moves what add_to() named. False: the state is not of this layout, which is no fault.
  RebalanceState rebalance_state() const;
  bool restore(const RebalanceState& state);

  Model& model() { return *model_; }
  ParamStore& store() { return *store_; }
  const Ranks& ranks() const { return *ranks_; }
  const c10::Device& device() const { return device_; }
  Precision precision() const { return precision_; }
  // As the model reads them: of a master above the type's largest number too.
  bool weights_finite() const { return bad_values(*store_, &Bucket::own).empty(); }

 private:
  // Where a value that is not finite came from, in the order in which a step computes.
  enum class Stage { kWeights, kForward, kBackward, kSum, kNone };
  struct Finding {
    Stage stage = Stage::kNone;
    int64_t order = 0;  // within the stage
    std::string what = {};

    std::string key() const;              // of one length; the smaller came first
    void first_of(const Finding& other);  // becomes it, where that came before
  };

  at::Tensor lost_rows();  // f64 scalar, this rank's
  StepInput input_of(const Feed& feed, const TrainState& state) const;
  void update(const StepOutput& output, TrainState& state, StepReport& report);
  void apply(const TrainState& state, StepReport& report, const at::Tensor& grad_scale);
  std::string first_bad(const Feed& feed, const TrainState& state);
  Finding bad_forward(const Feed& feed, const TrainState& state);
  Finding bad_gradient(const Feed& feed, const TrainState& state);
  const Schedule& schedule_of(int microbatches);
  // f(unit) for each in order, its values being there.
  void through_units(const std::function<void(int64_t unit)>& f);
  Live live_state(int64_t slot, size_t i, const std::string& name);

  const Recipe recipe_;
  const RunPlan plan_;
  c10::Device device_;
  Precision precision_;
  const Faults& faults_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::shared_ptr<Ranks> ranks_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Rebalancer> rebalancer_;  // null: experts stay
  StepWork work_;                           // of a step, but for the number of microbatches
  std::map<int, Schedule> schedules_;       // by the number of microbatches
  // What a load brings of state in codes, f32 on the host, by slot and state, until loaded(): its
  // pieces need not end with a block.
  std::map<std::pair<int64_t, size_t>, at::Tensor> brought_;
  std::mutex brought_mutex_;
};

}  // namespace troupe
