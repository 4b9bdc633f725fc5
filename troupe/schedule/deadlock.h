// Runs a schedule's communication on paper. Every rank issues in order.
//   channel    each pair of ranks has two in each direction, of activations and of gradients: first
//              in, first out
//   send       waits while `depth` before it on its channel are not received
//   receive    is posted where it stands and waits for nobody; the computation that uses the value
//              waits for its send
//   collective a reduction waits for all ranks that run its chunk, a gather likewise, but between
//              the ranks of one pipeline, where each gathers among its own replicas
// If all lists can be emptied so, no timing can stop them: what is enabled stays enabled.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

using Holders = std::map<int, std::set<int>>;  // chunk, as its parameters are named -> ranks

// A line for each rank that waits forever, for the sends of a channel that no rank receives and for
// its receives that no rank sends.
std::vector<std::string> deadlocks(const Schedule& schedule, const StepWork& work,
                                   const Holders& holders);

}  // namespace troupe
