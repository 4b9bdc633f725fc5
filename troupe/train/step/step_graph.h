// train.cuda_graph: a step replayed as CUDA graphs: one of forward and backward of all microbatches
// and the norm of the gradients, and behind it, without a word of the host between, that of the
// update. The host reads losses and norm while the update is at work (train/step/step_update.h). An
// optimizer whose kernels cannot read the step's numbers on the device is issued as ever.
//
// The first kWarmSteps steps of a shape are eager, then it is captured, and from that step on
// replayed: same kernels, same order, same bits as eager. A shape is what the host decides by: the
// sizes and types of the microbatches' tensors, and the numbers of the input that do not change from
// step to step. What does change is read from memory that each step fills before its replay: the
// batch, the factors of losses (StepInput::numbers), the update's rates and limits. kMostGraphs
// shapes are kept, in one pool of memory; the one that was used longest ago goes first.
//
// The host's code does not run in a replay. So what it leaves to others is kept from the capture and
// handed out again: gradients (StepGradients::hold), what routers have counted
// (MoeLayer::for_each_of_step), and the step's output, as copies, for others keep it over the next.
// What 8-bit operands show of their values (Fp8History) is written where it stays.
//
// Steps that the host must look into are eager: those whose rows hold several documents or padding
// (attention is given their lengths), and those whose choices are kept (log.routing). What no step
// of a run could do, train/recipe/graph_faults.h refuses.
//
// One rank alone, and no faults on demand. Weights stay where they are.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troupe/ops/support/device_graph.h"
#include "troupe/train/step/executor.h"
#include "troupe/train/step/step_update.h"

namespace troupe {

// Why no step of a run is replayed, as "on a cpu there are none"; empty: they are.
std::string why_no_graph(bool alone, const c10::Device& device, const Faults& faults);

// The tensors of a step's output, one for each type of theirs, so that a copy of all takes one a type.
class PackedOutput {
 public:
  PackedOutput() = default;
  explicit PackedOutput(const StepOutput& output);
  StepOutput copy() const;  // with memory of its own

 private:
  StepOutput form_;
  std::map<at::ScalarType, at::Tensor> flat_;
};

// What of a step is in its graphs, with the update or without it.
const char* captured_parts(bool update);

// A step's part in an update that is replayed.
struct GraphUpdate {
  std::function<std::vector<double>()> numbers;       // StepUpdate::numbers()
  std::function<void(const at::Tensor& seen)> learn;  // given what was measured, on the host
};

class StepGraph {
 public:
  static constexpr int64_t kWarmSteps = 3;
  static constexpr size_t kMostGraphs = 4;

  // All must outlive it. `update` null: it is not captured.
  StepGraph(Model& model, ParamStore& store, Executor& executor, StepUpdate* update, Pulse& pulse,
            const c10::Device& device);

  // As Executor::run, with a list whose update is last. A replay calls update.learn in place of
  // handlers.update where the update is captured.
  StepOutput run(const std::vector<Action>& list, const StepInput& input,
                 const Executor::Handlers& handlers, const GraphUpdate& update);
  // Of the last step; a replay's launch counts as forward, the wait for its norm as update.
  const StepSeconds& seconds() const { return seconds_; }
  // What is to be told of the last step: that it was captured, or why it is eager, each reason once.
  const std::string& note() const { return note_; }

 private:
  struct Shape {
    int64_t eager_steps = 0, last_use = 0;
    at::Tensor numbers = {};  // those of the input, then those of the update
    StepInput input = {};     // in memory that stays
    PackedOutput output = {};
    std::vector<at::Tensor> gradients = {}, of_step = {};
    StepUpdate::Measured measured = {};
    at::Tensor seen = {};  // on the host
    // Null: not captured yet, or the update is not.
    std::unique_ptr<DeviceGraph> graph = {}, update = {};
  };

  StepOutput eager(const std::vector<Action>& list, const StepInput& input,
                   const Executor::Handlers& handlers);
  void capture(Shape& shape, const std::vector<Action>& list, const StepInput& input,
               const GraphUpdate& update);
  StepOutput replay(Shape& shape, const StepInput& input, const Executor::Handlers& handlers,
                    const GraphUpdate& update);
  void launch_update(Shape& shape, const GraphUpdate& update);
  void forget_oldest();
  void for_each_of_step(const VisitTensor& f);

  Model& model_;
  ParamStore& store_;
  Executor& executor_;
  StepUpdate* const update_;
  Pulse& pulse_;
  const std::unique_ptr<DeviceGraphs> graphs_;
  std::map<std::string, Shape> shapes_;
  int64_t steps_ = 0;
  std::set<std::string> told_;  // reasons
  std::string note_;
  StepSeconds seconds_;
};

}  // namespace troupe
