// The update of a step, from its gradients on: their norm, the guard, the optimizer.
//
// Eager, there is one device-to-host copy, of losses and norm, read before any weight changes: the
// host judges, and issues the optimizer's kernels or does not. A gradient that is not finite never
// reaches a weight, nor does a spike with train.spike.skip.
//
// With train.update in_backward units are updated before that (train/step/unit_updates.h): what run()
// then does is to tell.
//
// In a CUDA graph (train/step/step_graph.h) nothing waits for the host. What differs from step to step,
// numbers() in f64, is read on the device: 1 / the scale of the loss, the limits of loss and norm
// above which the host would skip the step, and for each bucket the optimizer's constants. The
// device compares with these limits, and a step over them has NaN as its scale of gradients, with
// which no kernel writes anything. The host learns of the same losses and norm, and so of the same
// verdict, while the optimizer is at work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/file/fault.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/optim/optimizer.h"
#include "troupe/train/optim/state_stream.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/step/train_state.h"
#include "troupe/train/step/unit_updates.h"

namespace troupe {

class StepUpdate {
 public:
  // What it works on; all must outlive it.
  struct Run {
    const ResolvedRun& recipe;
    Precision precision;
    const ParallelSetup& setup;
    const Faults& faults;
    Model& model;
    ParamStore& store;
    Optimizer& optimizer;
    StateStream* stream = nullptr;  // null: state is on the device
    UnitUpdates* units = nullptr;   // null: all are updated after backward
  };
  explicit StepUpdate(const Run& run) : run_(run) {}

  // Updates weights, `state` and `report`. `votes`: as of Learner::step.
  void run(const StepOutput& output, const std::vector<double>& votes, TrainState& state,
           StepReport& report);

  // With `units`: the update of the buckets of a unit, whose gradients are whole and go behind it;
  // run() then ends the step, and updates nothing.
  void run_unit(const std::vector<int64_t>& buckets, const StepOutput& output,
                const TrainState& state);

  // Of one rank alone, in a graph of an optimizer that update_in_graph() takes: measure() and apply()
  // issue kernels, and `numbers` is numbers() on the device.
  struct Measured {
    at::Tensor seen;   // f64: loss, MTP loss, norm, rows lost and missed; with a teacher ce and
                       // kl, of preference pairs the three rewards
    at::Tensor scale;  // f32 [1]: of gradients, by which they are clipped
  };
  std::vector<double> numbers(const TrainState& state) const;
  Measured measure(const StepOutput& output, const at::Tensor& numbers);
  void apply(const Measured& measured, const at::Tensor& numbers);
  // `seen` on the host: what run() does beside the weights.
  void learn(const at::Tensor& seen, const std::vector<double>& votes, TrainState& state,
             StepReport& report);

 private:
  struct Rates {  // of the step, before a bucket's own factors
    double lr, weight_decay;
  };
  Rates rates(const Position& done) const;
  double unscale(const TrainState& state) const;
  bool taught() const { return run_.recipe.train.teacher.has_value(); }
  bool prefers() const { return run_.recipe.train.loss == LossKind::kDpo; }
  int64_t extras() const { return taught() ? 2 : prefers() ? 3 : 0; }
  at::Tensor sum_exactly(const StepOutput& output);
  void update_all(const Rates& rates, const at::Tensor& scale, const TrainState& state);
  at::Tensor last_scale(const TrainState& state) const;
  at::Tensor squares_of_step();
  void update_bucket(Bucket& bucket, const UpdateStep& step);
  // `scale`: of gradients; undefined: 1.
  UpdateStep step_of(const Bucket& bucket, const TrainState& state, const Rates& rates,
                     const at::Tensor& scale = {}) const;
  Measured measured(const StepOutput& output, const at::Tensor& unscale,
                    const std::vector<double>& votes);
  // Reads `seen`, on the host, and decides; false: nothing of this attempt counts.
  bool judge(const at::Tensor& seen, TrainState& state, StepReport& report) const;
  static void count(TrainState& state, const StepReport& report);

  Run run_;
};

}  // namespace troupe
