// In which order a backward runs what could run at once: PyTorch takes the latest record first. A
// record with a number that was taken earlier runs as if it had been recorded then. Gradients are
// the same bits; what changes is what stands between two of them, such as a transfer's begin and
// the wait for it.
//
//   const BackwardOrder order = take_backward_order();
//   side = f(x);                                           // recorded as always
//   record({.inputs = {y}, .outputs = {z}, ...}, order);   // backward: f's first, then this one
#pragma once

#include <cstdint>

namespace troupe {

struct Record;  // autograd.h

struct BackwardOrder {
  uint64_t number;
};

// The order in force at this moment, in this thread.
BackwardOrder take_backward_order();
// record() of autograd.h, with its place in a backward.
void record(Record r, BackwardOrder order);

}  // namespace troupe
