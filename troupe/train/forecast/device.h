// The device that a run computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// The device of that kind with that local index. E7101 if it does not exist.
c10::Device device_of(DeviceKind kind, int64_t local_rank = 0);

}  // namespace troupe
