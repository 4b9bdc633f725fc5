// When the optimizer updates weights, and by which norm gradients are clipped.
#pragma once

#include <array>

#include "troupe/core/text/text.h"

namespace troupe {

// after_backward: all weights at once, when all gradients and their norm are known. in_backward: each
// unit's (embedding, layer, head) when its gradient is whole, which then goes, so that those of two
// units are there at most (train/step/unit_updates.h). Without clipping, or with that of last_step,
// both give the same bits.
enum class UpdatePlace { kAfterBackward, kInBackward };
constexpr auto names_of(UpdatePlace) {
  return std::array{Named{"after_backward", UpdatePlace::kAfterBackward},
                    Named{"in_backward", UpdatePlace::kInBackward}};
}

// this_step: scale = min(1, clip / (norm + 1e-6)) of the step's own norm. last_step: of the norm of
// the last step in which it was finite; the first step of a run is not clipped.
enum class ClipBy { kThisStep, kLastStep };
constexpr auto names_of(ClipBy) {
  return std::array{Named{"this_step", ClipBy::kThisStep}, Named{"last_step", ClipBy::kLastStep}};
}

}  // namespace troupe
