// A model and its training state: parameters, optimizer, the schedule of a step, and the checks
// before a weight changes. It has no files, logs or clocks.
//
// train/step/step_update.h says what happens between gradients and weights. A step in which some rank had
// no room for all rows that came (model.moe.capacity.budget, C7) is done again with room for all,
// before anything is updated: all ranks learn of it by the same sum.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/data/tokens/dataset.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/optim/state_stream.h"
#include "troupe/train/params/bad_values.h"
#include "troupe/train/params/rebalance.h"
#include "troupe/train/step/checkpoint_tensors.h"
#include "troupe/train/step/executor.h"
#include "troupe/train/step/feed.h"
#include "troupe/train/step/step_graph.h"
#include "troupe/train/step/step_update.h"
#include "troupe/train/step/teacher.h"
#include "troupe/train/step/train_state.h"

namespace troupe {

// auto: bf16 on a GPU, fp32 on the CPU.
Precision precision_on(const c10::Device& device, Precision asked);
at::ScalarType type_of(Precision precision);  // of the values; not of kAuto

class Learner {
 public:
  Learner(const ResolvedRun& run, const c10::Device& device, const Faults& faults,
          std::shared_ptr<const ParallelSetup> setup = std::make_shared<ParallelSetup>());

  // Before the first step of a recipe with train.teacher, on the ranks that have the output head.
  void learn_from(std::unique_ptr<const Teacher> teacher) { teacher_ = std::move(teacher); }
  bool has_head() const { return model_->has_unit(model_->num_units() - 1); }

  // One step over this rank's part of a global batch; advances `state`, also if the update is
  // skipped. `votes`: values of this rank that ranks add up in the same all-reduce as loss and norm
  // (StepReport::votes), called once, after the backward; all ranks give equally many.
  using Votes = std::function<std::vector<double>()>;
  StepReport step(const Feed& feed, TrainState& state, const Votes& votes = {});

  // The summed loss of a batch and the weight of its targets; changes nothing. Every rank calls:
  // each replica with its own rows (or none), the same on all its ranks. The sums are over the
  // replica's rows and equal on its ranks.
  struct Sums {
    double loss = 0, weight = 0;
  };
  Sums evaluate(const TokenBatch& own);
  // The same of preference pairs, with the recipe's train.dpo; the weight is the number of pairs, and
  // sums over them are rewards_3 of ops/preference_loss.h.
  struct PairSums : Sums {
    double chosen = 0, rejected = 0, right = 0;
  };
  PairSums evaluate_pairs(const TokenBatch& own);
  // A forward pass with a function of the caller's: calls f for each unit of this rank, in order,
  // with its parameters gathered, for microbatches of `tokens`. h is undefined for the embedding;
  // the result of the head is not used. Every rank calls (PL13).
  void through_units(const std::vector<int64_t>& tokens, const Executor::UnitFunction& f,
                     PassKind kind = PassKind::kOther);

  CheckpointTensors& checkpoint() { return *tensors_; }
  // State of expert rebalancing (train/params/rebalance.h); every rank calls. restore() follows
  // checkpoint().loaded() and moves the loaded experts; false if the state belongs to another layout (no error).
  RebalanceState rebalance_state() const;
  bool restore(const RebalanceState& state);

  int64_t offloaded_bytes() const { return executor_->offloaded_bytes(); }  // in the last step
  Model& model() { return *model_; }
  ParamStore& store() { return *store_; }
  const ParallelSetup& setup() const { return *setup_; }
  const ParallelState& parallel() const { return setup_->state; }
  const c10::Device& device() const { return device_; }
  Precision precision() const { return precision_; }
  // Checks the values that the model reads: a master may overflow their type.
  bool weights_finite() const { return bad_values(*store_, &Bucket::own).empty(); }

 private:
  StepInput input_of(const Feed& feed, const TrainState& state) const;
  std::string first_bad(const Feed& feed, const StepInput& input);
  // With train.loss: dpo, the pairs of each microbatch with the reference's log-probabilities: those
  // of the model without its adapters. A forward pass that every rank makes; empty where the head
  // is another rank's.
  std::vector<std::shared_ptr<const Preference>> references(const Feed& feed, PassKind kind);
  bool prefers() const { return recipe_.train.loss == LossKind::kDpo; }
  at::Tensor end_fp8_step();  // StepReport::fp8_saturated
  const std::vector<Action>& list_of(int microbatches, bool training = true);  // this rank's

  const ResolvedRun recipe_;
  c10::Device device_;
  Precision precision_;
  const Faults& faults_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<CheckpointTensors> tensors_;
  std::shared_ptr<const ParallelSetup> setup_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StateStream> stream_;  // null: the optimizer's state is on the device
  std::unique_ptr<UnitUpdates> units_;   // null: all are updated after backward
  std::unique_ptr<StepUpdate> update_;
  std::unique_ptr<const Teacher> teacher_;  // null: none, or the head is another rank's
  std::unique_ptr<StepGraph> graph_;        // null: steps are eager
  bool offload_told_ = false;               // how much went to host memory
  std::unique_ptr<Rebalancer> rebalancer_;  // null: experts stay
  std::vector<Fp8History*> histories_;      // of recipe delayed
  StepWork work_;                           // of a step, without the number of microbatches
  // By whether they train and by the number of microbatches.
  std::map<std::pair<bool, int>, Schedule> schedules_;
};

}  // namespace troupe
