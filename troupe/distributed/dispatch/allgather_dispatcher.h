// The dispatcher of several processes that hands every token to every rank: where nearly every rank
// needs nearly every token, that is hardly more to send than the choice of them, and nothing of
// what is sent depends on the routing. All sizes follow from the largest number of tokens that a
// rank has, which they tell each other and the host reads once in a call of rows().
//
// Modes, types of the wire and results are those of a2a_dispatcher, bit for bit. kFast sends back
// one row for each token and rank, kExact one for each slot and rank, which is K times as much.
#pragma once

#include <memory>

#include "troupe/distributed/dispatch/a2a_dispatcher.h"

namespace troupe {

std::unique_ptr<Dispatcher> allgather_dispatcher(std::shared_ptr<RankGroup> ranks,
                                                 const Placement& placement, DispatchMode mode,
                                                 WireType wire = WireType::kNative);

}  // namespace troupe
