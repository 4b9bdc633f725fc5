// Runs the actions of a step on a model: one handler a kind. It issues and decides nothing; which
// microbatch goes when, what is computed again, when the update comes, is the schedule's to say.
//
// Autograd works inside a unit. A forward takes the unit before's output as a new leaf; a backward
// asks for the gradients of that leaf and of the unit's parameters, adds the latter to the
// ParamStore and keeps the former for the unit before. So a graph lives from F to B of one unit and
// one microbatch, and no gradient is accumulated but in the store's f32 buffers.
//
// What is differentiated is loss_scale (sum of weighted token losses, each times its microbatch's
// factor, + sum of auxiliary losses / all_microbatches). All are of the whole global batch, so
// gradients are sums, never means; where each factor is 1 / the batch's sum of weights, the split
// into microbatches and ranks does not matter (rules A7, D2).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/nn/models/model.h"
#include "troupe/schedule/action.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

struct StepInput {
  std::vector<Batch> microbatches = {};  // this rank's; those without rows add nothing
  std::vector<double> factors = {};      // of each one's weighted token losses
  double loss_scale = 1;
  int64_t all_microbatches = 0;  // of all ranks, those without rows not counted
  int64_t first_token = 0;       // global index, within the step, of microbatch 0's first
  Context context = {};          // training, seed, step; the executor fills in the rest
};

class Executor {
 public:
  struct Handlers {
    std::function<void(const StepOutput&)> update = {};
    std::function<void()> snapshot = {};
    // A parameter's gradient of one microbatch on this rank, before it is added to others.
    std::function<void(const Action&, int64_t slot, const at::Tensor& gradient)> gradient = {};
  };

  // `owners`: for each unit the one under whose name its parameters are gathered and reduced.
  // `pulse` is told of each action.
  Executor(Model& model, ParamStore& store, const Faults& faults, const std::vector<int>& owners,
           Pulse& pulse);
  // `list` is this rank's, verified. Units are the schedule's chunks.
  StepOutput run(const std::vector<Action>& list, const StepInput& input, const Handlers& handlers);
  const StepSeconds& seconds() const { return seconds_; }  // of the last step
  const std::vector<int64_t>& buckets_of(int64_t unit) const {
    return unit_buckets_[static_cast<size_t>(unit)];
  }

 private:
  using Cell = std::pair<int, int>;  // chunk, microbatch
  struct Live {
    at::Tensor input;   // a leaf, or undefined for the first unit
    UnitResult result;  // with its graph
  };

  void forward(const Action& action, const StepInput& input, bool light);
  void backward(const Action& action, const StepInput& input, const Handlers& handlers);
  void reduce(const Action& action, const StepInput& input);
  // While it lives, an action of this phase is under way, and its time is taken.
  class Watched;
  void collect(const Action& action, const UnitResult& result, const StepInput& input);

  Model& model_;
  ParamStore& store_;
  const Faults& faults_;
  std::vector<std::vector<std::pair<int64_t, Param*>>> unit_params_;  // slot, parameter
  std::vector<std::vector<int64_t>> unit_buckets_;                    // that a unit reads
  std::map<int, std::vector<int64_t>> owned_units_, owned_buckets_;   // by the owner
  std::map<Cell, Live> live_;
  std::map<Cell, at::Tensor> outputs_;    // of a unit, for the next one
  std::map<Cell, at::Tensor> gradients_;  // of a unit's input, for the one before
  StepOutput out_;
  StepSeconds seconds_;
  Pulse& pulse_;
};

}  // namespace troupe
