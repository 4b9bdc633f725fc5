// The device that a run computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// The device of that kind with that local index. E7101 if it does not exist.
c10::Device device_of(DeviceKind kind, int64_t local_rank = 0);
// That of a rank of the recipe's run. E7101 where there are fewer GPUs than ranks, unless
// `parallel.backend` is gloo: then ranks take turns and share them.
c10::Device device_of_rank(const Recipe& recipe, int64_t local_rank);

}  // namespace troupe
