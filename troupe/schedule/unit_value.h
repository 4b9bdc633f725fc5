// Names of the activations and gradients that units pass to each other, and which of them an action
// releases. The executor stores its tensors by these names; the proof (prove.h) uses the same functions.
#pragma once

#include <compare>
#include <vector>

#include "troupe/schedule/action.h"

namespace troupe {

// The output of a unit, or the gradient of its input.
struct UnitValue {
  bool gradient = false;
  int unit = 0, microbatch = 0;
  auto operator<=>(const UnitValue&) const = default;
};

inline UnitValue input_of(const Action& a) {
  return {false, a.chunk - 1, a.microbatch};
}
inline UnitValue output_of(const Action& a) {
  return {false, a.chunk, a.microbatch};
}
inline UnitValue input_gradient_of(const Action& a) {
  return {true, a.chunk, a.microbatch};
}
inline UnitValue output_gradient_of(const Action& a) {
  return {true, a.chunk + 1, a.microbatch};
}

// A transfer names the chunk whose input it is: the gradient leaves the rank that has the chunk.
inline bool carries_gradient(const Action& transfer, bool has_chunk) {
  return has_chunk == (transfer.kind == Kind::kSend);
}
inline UnitValue carried_by(const Action& transfer, bool has_chunk) {
  return carries_gradient(transfer, has_chunk) ? input_gradient_of(transfer) : input_of(transfer);
}

// What a computation has read and no later action reads. Without training a forward is the last.
inline std::vector<UnitValue> dropped_by(const Action& a, bool training) {
  if (a.kind == Kind::kBackward || a.kind == Kind::kBackwardInput) {
    return {output_gradient_of(a), input_of(a)};
  }
  if (!training && a.kind == Kind::kForwardLight) return {input_of(a)};
  return {};
}

}  // namespace troupe
