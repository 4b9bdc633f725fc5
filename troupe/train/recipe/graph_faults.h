// What of a recipe train.cuda_graph excludes: what the host decides anew in each step, which a replay
// would repeat as it was when it was captured, and what more than one rank does.
#pragma once

#include <string>
#include <vector>

namespace troupe {

struct Recipe;

// A line each, with the key and what to do. Empty without train.cuda_graph.
std::vector<std::string> graph_faults(const Recipe& recipe);

}  // namespace troupe
