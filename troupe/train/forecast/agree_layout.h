// The layout that all ranks of a run use: they choose alike, from what they have together.
#pragma once

#include "troupe/distributed/world/world.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Rank 0's choice of what the recipe leaves open, since processors of different kinds round
// differently and ways may be as fast. The others choose too: what cannot be is an error of each.
LayoutChoice agree_layout(const Recipe& recipe, World& world);

}  // namespace troupe
