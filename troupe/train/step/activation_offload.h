// train.offload_layers: what a unit's graph keeps for backward waits in host memory (pinned, where
// the device is a GPU).
//
//   send    behind the unit's forward: copies begin, beside what is computed next
//   settle  behind the next forward, before any backward: their device memory is free again
//   fetch   one backward ahead: memory is taken, and copies back begin
//   need    before the unit's own backward: it waits for them
//
// A storage is moved as a whole and stays the same object: views, tensors that several nodes save
// and version counters are as they were, and each byte is copied once. Moved are storages of
// kLeastBytes or more that the graph alone refers to (ops/support/sole_storages.h); a unit's input
// and output, which its neighbors read, parameters and tables stay. So at most two units' tensors
// are in device memory: one at work, one on its way.
//
// Memory is taken and given back by the current stream and copied by one other. It is given back
// once the current stream waits for the copy out, and copied into behind all that the current
// stream was given before it was taken; so the allocator may hand it on at once, and the host never
// waits.
// On a CPU all copies are made at the call.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "troupe/ops/support/autograd.h"

namespace troupe {

class ActivationOffload {
 public:
  static constexpr size_t kLeastBytes = size_t{1} << 20;
  using Cell = std::pair<int, int>;  // unit, microbatch

  explicit ActivationOffload(const c10::Device& device, size_t least_bytes = kLeastBytes);
  ~ActivationOffload();
  ActivationOffload(const ActivationOffload&) = delete;
  ActivationOffload& operator=(const ActivationOffload&) = delete;

  // What the graph of `roots` alone keeps, until need(cell). Settles what was sent before.
  void send(const Cell& cell, const TensorList& roots);
  void settle();
  void fetch(const Cell& cell);  // nothing is there, or it is under way: does nothing
  void need(const Cell& cell);   // nothing is there: does nothing
  // Lets go of all that was sent; graphs that still miss it cannot go backward any more.
  void forget();

  int64_t waiting() const;     // cells that were sent and not needed yet
  int64_t sent_bytes() const;  // since the last forget()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
