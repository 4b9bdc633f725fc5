// Two computations of one rank that take turns: where one has begun to move rows and would wait
// for them, the other continues (OV8). They are the backward of a block for one microbatch and the
// forward of a block for another; their transfers are the points at which they change:
//
//   backward y   gradients to experts >|          dX, its way back >| dW    |           attention
//   forward  x                 attention, rows out >|                 experts, results back >| sum
//
// One of them runs at any time, so the order of all calls follows from what the two are: equal
// lists change turns equally on all ranks, and no collective waits for another order. On a GPU both
// issue to one stream in that order, and transfers have their own.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

class Turns {
 public:
  explicit Turns(const c10::Device& device);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Both, `first` first, in this thread; `second` in one of its own. Returns when both are done. If
  // one throws, the other ends at its next turn, and what was thrown first is thrown.
  void both(const std::function<void()>& first, const std::function<void()>& second);
  // Gives the turn to the other one and waits for it to come back. Does nothing where there is no
  // other, or it is done.
  void pass();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Passes the turn before each wait for rows, in forward and in backward.
std::unique_ptr<Dispatcher> turning_dispatcher(std::unique_ptr<Dispatcher> inner,
                                               std::shared_ptr<Turns> turns,
                                               std::shared_ptr<Pulse> pulse);

}  // namespace troupe
