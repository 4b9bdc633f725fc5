// A training step as data: for each rank, the list of actions that it issues, in order. Builders
// (schedules.h) make lists, verify.h proves them, train/ executes them, plan/ costs them.
//
// A model is a chain of chunks, each a unit of it (embedding, a block, the head) or a run of units;
// chunk c's output is the input of chunk c + 1. Chunks are numbered over the whole model.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

enum class Kind : uint8_t {
  kGather,          // make the chunk's whole parameters present: begun here, waited for at its use
  kForwardLight,    // compute the chunk; keep its input and no graph
  kForward,         // compute the chunk; keep what its backward needs
  kSend,            // the input of `chunk` (or its gradient) to `peer`
  kRecv,            // the same, from `peer`
  kBackward,        // gradients of the chunk's input and parameters; drops the graph
  kBackwardInput,   // the first half: the input's gradient
  kBackwardWeight,  // the second half: the parameters' gradients; drops the graph
  kFree,            // drop gathered parameters
  kReduce,          // sum the chunk's gradients, of one microbatch or of the whole step, over its
                    // replicas: begun here, waited for by the update
  kUpdate,          // the optimizer's step over the chunk; chunk -1: all of this rank that had none
  kSnapshot,        // copy the state out for a checkpoint
};

struct Action {
  Kind kind;
  int chunk = -1;               // -1: all
  int microbatch = -1;          // -1: the whole step
  int peer = -1;                // the other rank of a send or recv
  std::vector<int> after = {};  // positions, earlier in this rank's list, that it waits for
  // A backward and the forward that follows it in the list, of another microbatch, take turns:
  // where one waits for rows of experts, the other continues (OV8).
  bool beside = false;

  auto operator<=>(const Action&) const = default;
};

// kGather, kReduce and their kin are of all ranks that run the chunk: each issues them in the same
// order. Chunks that share parameters (work.h) are gathered, freed, reduced and updated under the
// name of the first. Replicas of a model run equal lists, so a schedule holds the lists of one.
//
// Sends and receives name the chunk whose input it is: what goes to the rank that runs the chunk is
// the activation, what comes from it is the gradient.
using Schedule = std::vector<std::vector<Action>>;  // [rank][position]

// The letters of the text form (text.h). Recomputation is a light forward early and a forward just
// before the backward: L0.3 ... F0.3 B0.3.
constexpr auto names_of(Kind) {
  return std::array{Named{"G", Kind::kGather},        Named{"L", Kind::kForwardLight},
                    Named{"F", Kind::kForward},       Named{"S", Kind::kSend},
                    Named{"R", Kind::kRecv},          Named{"B", Kind::kBackward},
                    Named{"I", Kind::kBackwardInput}, Named{"W", Kind::kBackwardWeight},
                    Named{"X", Kind::kFree},          Named{"A", Kind::kReduce},
                    Named{"U", Kind::kUpdate},        Named{"P", Kind::kSnapshot}};
}

}  // namespace troupe
