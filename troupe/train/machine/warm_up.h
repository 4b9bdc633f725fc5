// Makes this process ready for a rank's place, before it has one (troupe launch --spares).
#pragma once

#include <cstdint>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Opens the device of the recipe's rank with that local index, as the rank would, and runs each
// operator once there (selftest.h): libraries, threads, the CUDA context and kernels are loaded.
// No result of the run depends on it. E7102 where a check fails.
void warm_up(const Recipe& recipe, int64_t local_rank);

}  // namespace troupe
