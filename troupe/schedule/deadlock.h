// Runs a schedule's communication on paper. Every rank issues in order; a receive waits for its
// send, which waits for nobody; a gather or reduction waits for all ranks that run its chunk. If
// all lists can be emptied so, no timing can stop them: what is enabled stays enabled.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "troupe/schedule/action.h"

namespace troupe {

using Holders = std::map<int, std::set<int>>;  // chunk, as its parameters are named -> ranks

// A line for each rank that waits for ever and for each send that nobody receives.
std::vector<std::string> deadlocks(const Schedule& schedule, const Holders& holders);

}  // namespace troupe
