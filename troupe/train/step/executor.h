// Runs the actions of a step on a model: one handler per kind. It issues them in order and decides
// nothing: the schedule says which microbatch runs when, what is recomputed, when the update comes.
//
// In a pipeline the list is that of this rank, and the model has the units of its stages;
// unit_values.h says how they hand on what they compute.
//
// Each unit has a graph of its own. A forward takes the previous unit's output as a new leaf; a
// backward computes the gradients of that leaf and of the unit's parameters, adds the latter to the
// ParamStore and keeps the former for the previous unit. A graph lives from F to B of one unit and
// one microbatch, and gradients are accumulated in the store's f32 buffers only.
//
// Each output, gradient and graph is used by an action of the list: what a list leaves in memory
// when it has ended is an error, on each rank of a pipeline.
//
// A backward in halves (I, W) makes the gradients of weights later (ops/support/late.h): W adds
// them as B would have, so sums over microbatches are the same bits.
//
// With StepInput::apart each use of a parameter adds a gradient of its own to the store, by way of
// W's half at the end of each backward, and the losses of microbatches stay apart: whoever adds them
// chooses the order (run.bits layout).
//
// Of units that offload() names, what a graph keeps waits in host memory from F on and is back for
// B (activation_offload.h); it comes while the backward before B in the list runs.
//
// The differentiated loss is loss_scale (sum of weighted token losses, each times its microbatch's
// factor, + sum of auxiliary losses / all_microbatches). Both sums are over the global batch, so
// gradients are added, never averaged; with factors of 1 / the batch's sum of weights the split
// into microbatches and ranks does not matter (rules A7, D2).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/group/stage_channels.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/nn/model/model.h"
#include "troupe/ops/support/late.h"
#include "troupe/schedule/action.h"
#include "troupe/train/observe/phase_timer.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/params/unit_params.h"
#include "troupe/train/step/activation_offload.h"
#include "troupe/train/step/unit_values.h"

namespace troupe {

struct StepInput {
  std::vector<Batch> microbatches = {};  // this rank's; those without rows add nothing
  std::vector<double> factors = {};      // of each one's weighted token losses
  double loss_scale = 1;
  int64_t all_microbatches = 0;  // of all ranks, those without rows not counted
  int64_t first_token = 0;       // global index, within the step, of microbatch 0's first
  bool apart = false;            // gradients of each use, and losses of each microbatch
  bool counts_terms = true;   // of auxiliary losses: one rank of those that share the microbatches
  bool keep_choices = false;  // StepOutput::choices
  // step_numbers(), f64 on the device: they are read from there. Undefined: from what is above.
  at::Tensor numbers = {};
  // Of a microbatch, asked for before its loss (train/step/teacher.h); absent: no teacher.
  std::function<std::shared_ptr<const SoftTargets>(const Batch&)> teacher = {};
  // Of each microbatch, on the rank that has the head: its preference pairs; empty: there are none.
  std::vector<std::shared_ptr<const Preference>> preferences = {};
  Context context = {};  // training, seed, step; the executor fills in the rest
};

// A microbatch as the head is given it: with the words of the teacher, where there is one, and as
// preference pairs.
Batch head_batch(const StepInput& input, int64_t microbatch);

// What a step's losses and their gradients are multiplied by: for each microbatch the gradient of
// its token losses, then for each its factor, then the gradient of auxiliary losses.
std::vector<double> step_numbers(const StepInput& input);

class Executor {
 public:
  struct Handlers {
    std::function<void(const StepOutput&)> update = {};
    // The update of one owner's buckets in backward (U with a chunk), whose gradients go behind it.
    std::function<void(const std::vector<int64_t>& buckets, const StepOutput&)> update_unit = {};
    std::function<void()> snapshot = {};
    // A parameter's gradient of one microbatch on this rank, before it is added to others.
    std::function<void(const Action&, int64_t slot, const at::Tensor& gradient)> gradient = {};
    // Runs a backward and the forward beside it in turns (Turns::both); absent: one after the
    // other.
    using Part = std::function<void()>;
    std::function<void(const Part& back, const Part& ahead)> both = {};
  };

  // h of a microbatch through a unit; the head, which comes last, gives an undefined tensor.
  using UnitFunction =
      std::function<at::Tensor(int64_t unit, int64_t microbatch, const at::Tensor& h)>;

  // `owners`: for each unit the one under whose name its parameters are gathered and reduced.
  // `pulse` records each action. `channels`: to the other ranks of the pipeline.
  Executor(Model& model, ParamStore& store, const Faults& faults, const std::vector<int>& owners,
           Pulse& pulse,
           std::shared_ptr<StageChannels> channels = std::make_shared<StageChannels>());
  // From the next run on; a step's memory and time change, its results do not. Not beside
  // Handlers::both, which has two units at work.
  void offload(std::set<int> units, std::unique_ptr<ActivationOffload> to);
  int64_t offloaded_bytes() const { return offloaded_bytes_; }  // by the last run
  // `list` is this rank's, verified. Units are the schedule's chunks.
  StepOutput run(const std::vector<Action>& list, const StepInput& input, const Handlers& handlers);
  // A list of forwards alone: f of each unit that is here and each microbatch, in the list's order.
  // `tokens`: of each microbatch, on all ranks that share it together. `training`: of the context
  // that f gives the model.
  void pass(const std::vector<Action>& list, const std::vector<int64_t>& tokens,
            const UnitFunction& f, PassKind kind, bool training = false);
  const StepSeconds& seconds() const { return seconds_; }  // of the last step

 private:
  using Cell = std::pair<int, int>;  // chunk, microbatch
  struct ForwardState {
    at::Tensor input;                      // a leaf, or undefined for the first unit
    UnitResult result;                     // with its graph
    std::shared_ptr<LateQueue> late = {};  // of a backward in halves
  };

  void compute(const Action& action, const StepInput& input, const Handlers& handlers);
  void compute_both(const Action& back, const Action& ahead, const StepInput& input,
                    const Handlers& handlers);
  void forward(const Action& action, const StepInput& input, bool light);
  void backward(const Action& action, const StepInput& input, const Handlers& handlers);
  void backward_weight(const Action& action, const Handlers& handlers);
  void add_late(LateQueue& late, const Action& action, const Handlers& handlers);
  void reduce(const Action& action, const StepInput& input);
  void update(const Action& action, const Handlers& handlers);
  void find_next_backwards(const std::vector<Action>& list);
  void offload_behind(const Action& forward);
  // Runs an action that every list has: a gather, free or transfer. False: it is none of them.
  bool moves(const Action& action);
  void end();
  int64_t kept() const;  // outputs, gradients and graphs that wait for the action that uses them
  // Takes the time of an action of this phase while it is under way.
  PhaseTimer timed(Phase phase, double PhaseSeconds::*part, int unit = -1, int microbatch = -1);

  Model& model_;
  ParamStore& store_;
  const Faults& faults_;
  UnitParams params_;
  std::map<Cell, ForwardState> forward_states_;
  std::set<Cell> halved_;                            // whose backward comes in halves
  std::map<Cell, std::shared_ptr<LateQueue>> late_;  // between the halves
  std::set<Cell> light_;     // have gone forward lightly: their output is made a second time
  UnitValues values_;        // what units hand to each other
  std::set<int> offloaded_;  // units; none: offload_ is null
  std::map<Cell, Cell> next_backward_;          // of a backward the one behind it in the list
  std::unique_ptr<ActivationOffload> offload_;  // goes before the graphs that it serves
  int64_t offloaded_bytes_ = 0;
  int64_t step_ = 0;
  StepOutput out_;
  StepSeconds seconds_;
  Pulse& pulse_;
};

}  // namespace troupe
