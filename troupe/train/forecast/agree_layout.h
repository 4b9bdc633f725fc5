// The layout that all ranks of a run use: they choose alike, from what they have together.
#pragma once

#include "troupe/distributed/world/world.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Rank 0 chooses what the recipe leaves open, and all ranks take its choice: processors of different
// kinds round differently, and two layouts may be equally fast. The other ranks choose too, so that
// a layout that cannot run is an error on each rank.
LayoutChoice agree_layout(const Recipe& recipe, World& world);

}  // namespace troupe
