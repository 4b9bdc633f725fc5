// The updates of a step in the course of its backward (train.update: in_backward): a unit's, when its
// gradient is whole. On a GPU:
//
//   current stream   backward of unit c | backward of c - 1       | backward of c - 2 ..
//   update stream                       | update of c, its state  | update of c - 1 ..
//
// The gradient of c is held until the current stream has been told to wait for c's update, before
// the update of c - 1 begins: gradients of two units are there at most. Weights of c are read again
// in the next step, before which wait() comes.
//
// No update can be taken back, so the host looks at each unit's gradient, and at the loss, before
// it issues the unit's update: one device-to-host copy a unit. From the first value that is not
// finite on, and where their norm overflows f32, no unit of the step is updated.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/ops/support/copy_lane.h"
#include "troupe/train/params/step_gradients.h"

namespace troupe {

class UnitUpdates {
 public:
  explicit UnitUpdates(const c10::Device& device) : device_(device), lane_(device) {}

  // Waits for the unit before; then, if all is finite so far, issues `update` on the update stream.
  // `loss`: this rank's part, or undefined. Every rank calls for the same units, `sum` is over all
  // of them.
  void run(const StepGradients& gradients, const std::vector<int64_t>& buckets,
           const std::vector<at::Tensor>& held, const at::Tensor& loss,
           const std::function<at::Tensor(const at::Tensor&)>& sum,
           const std::function<void()>& update);
  // The current stream waits for the last one.
  void wait();
  // The sum of squares of this rank's gradients, f64 [1], in the order of StepGradients::counted():
  // the bits of sum_squares(counted()). Then all begins anew.
  at::Tensor end_step();
  int64_t updated() const { return updated_; }  // units of the step, until end_step()

 private:
  bool is_sound(const at::Tensor& squares, const at::Tensor& loss,
                const std::function<at::Tensor(const at::Tensor&)>& sum);

  c10::Device device_;
  CopyLane lane_;
  CopyMark done_ = {};
  std::vector<at::Tensor> held_ = {};  // gradients that the update stream reads
  std::map<StepGradients::Place, at::Tensor> squares_ = {};
  double total_ = 0;  // squares of all units so far, of all ranks
  bool sound_ = true;
  int64_t updated_ = 0;
};

}  // namespace troupe
