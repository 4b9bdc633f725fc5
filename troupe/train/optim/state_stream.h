// train.offload_state: the update of buckets whose masters (or their lower halves), moments and
// scales are in host memory. They pass through the device in windows, a part of a bucket's own range
// each, while values and gradients stay where they are:
//
//   window i + 1 comes in | window i is updated | window i - 1 goes out
//
// on two lanes beside the current stream (ops/support/copy_lane.h), through three buffers on the
// device that are there during an update alone. A window is a bucket of its own, whose buffers are
// the device's copies; what an optimizer computes is what it computes without windows, so bits are
// the same:
//   by element   windows of `piece` elements, whole blocks of 8-bit moments; they end anywhere
//   by matrix    whole parameters, `piece` elements or one parameter; a whole bucket where ranks cut
//                its matrices (muon gathers the directions of a bucket)
// State of a row or a matrix (Optimizer::slot_states) stays on the device.
//
// With train.update in_backward buckets of one unit come at a time, on a stream beside backward; the
// buffers, and the windows in them, go on from unit to unit until finish().
//
// On a CPU the copies are made within host memory: nothing is saved there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "troupe/ops/support/copy_lane.h"
#include "troupe/train/optim/optimizer_base.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

// Elements [from, from + size) of a bucket's own range.
struct StateWindow {
  size_t bucket = 0;
  int64_t from = 0, size = 0;
};
// All of a store's, in order. `piece`: rounded up to blocks.
std::vector<StateWindow> state_windows(const ParamStore& store, const Optimizer& optimizer,
                                       int64_t piece);
// The same of some buckets.
std::vector<StateWindow> state_windows(const ParamStore& store, const Optimizer& optimizer,
                                       int64_t piece, const std::vector<int64_t>& buckets);
// Of one window, one way.
int64_t window_bytes(const Bucket& bucket, const StateWindow& window);

class StateStream {
 public:
  using StepOf = std::function<UpdateStep(const Bucket&)>;
  static constexpr int64_t kPiece = int64_t{1} << 22;  // elements
  static constexpr size_t kBuffers = 3;

  explicit StateStream(const c10::Device& device, int64_t piece = kPiece);

  // Updates all buckets. When it returns host memory holds the new state: checkpoints, hashes and
  // moves of experts read it there.
  void update(ParamStore& store, Optimizer& optimizer, const StepOf& step_of);
  // Issues the update of some buckets on the current stream, the same for all calls until finish(),
  // behind which host memory holds the new state.
  void issue(ParamStore& store, Optimizer& optimizer, const std::vector<int64_t>& buckets,
             const StepOf& step_of);
  void finish();

 private:
  struct Buffer {
    at::Tensor bytes = {};
    Bucket bucket = {};  // the window that is in it
    CopyMark arrived = {}, left = {};
  };
  void make_buffers(const ParamStore& store, const Optimizer& optimizer);
  void bring(const Bucket& bucket, const StateWindow& window, Buffer& buffer);
  void put_back(const Bucket& bucket, const StateWindow& window, Buffer& buffer);

  c10::Device device_;
  int64_t piece_;
  CopyLane in_, out_;
  std::vector<Buffer> buffers_ = {};  // kBuffers between the first issue() and finish()
  size_t next_ = 0;                   // the buffer of the next window
};

}  // namespace troupe
