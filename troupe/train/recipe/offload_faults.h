// What of a recipe train.offload_layers excludes: layers that keep nothing, or that are not there,
// and steps whose memory must not move or in which two layers are at work at once.
#pragma once

#include <string>
#include <vector>

namespace troupe {

struct Recipe;

// A line each, with the key and what to do. Empty without train.offload_layers.
std::vector<std::string> offload_faults(const Recipe& recipe);

}  // namespace troupe
