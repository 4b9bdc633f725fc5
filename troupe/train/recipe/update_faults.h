// What of a recipe train.update: in_backward and train.clip_by: last_step exclude: steps that must be
// judged as a whole before a weight changes, and a norm that nobody asks for. What of a layout they
// exclude, layout_faults() says (parallel.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct Recipe;

// (path, fault) each, with what to do.
std::vector<std::pair<std::string, std::string>> update_faults(const Recipe& recipe);

}  // namespace troupe
