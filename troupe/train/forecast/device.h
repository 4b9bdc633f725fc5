// The device that a run computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// The device that the recipe asks for, of this machine's the one with that number; E7101 if it is
// not there.
c10::Device device_of(DeviceKind kind, int64_t local_rank = 0);

}  // namespace troupe
