// record() for operators with weights, whose gradients can be put off (late.h).
#pragma once

#include <cstddef>
#include <optional>

#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/backward_order.h"
#include "troupe/ops/support/late.h"

namespace troupe {

// For an operator whose inputs from `first_weight` on are weights. In a scope those that
// are parameters, leaves of the graph, or views of all of one are put off; what was computed from
// parameters is not. With no other input that wants a gradient nothing would ever run the backward:
// nothing is put off.
// With `apart`, outside of a scope, the gradients of weights are made by a node of their own, which
// has a place of its own in the backward: the function runs twice, as for a queue.
struct WeightsApart {
  const char* name = nullptr;  // of that node
  std::optional<BackwardOrder> order = {};
};
void record_late(Record r, size_t first_weight, const WeightsApart& apart = {});

// An operator whose backward is cut. Record::backward makes the gradients of the inputs before
// `first_weight`, and keeps what `weights` makes the others of; `needs` tells it which they will
// be. `weights` is given `needs` alone, and returns a tensor for each input as backward does.
struct Halves {
  const char* name;  // shown as the second half's gradient function
  size_t first_weight;
  BackwardFn weights;
  // Where in the backward the second half runs; absent: nowhere but in a LateScope.
  std::optional<BackwardOrder> order = {};
};

// In a LateScope the second half goes to its queue, else it has its place in the backward. Returns
// false and records nothing where the backward stays whole: no LateScope is open and no order is
// given, only gradients of weights are wanted or none of them, or a LateScope is open and one of
// the weights was computed from parameters.
bool record_halves(const Record& r, const Halves& halves);

}  // namespace troupe
