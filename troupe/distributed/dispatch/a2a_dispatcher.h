// The dispatcher of several processes over c10d's all-to-all: between processors over Gloo, between
// GPUs over NCCL, on any topology. It defines what expert parallelism computes; others are faster.
//
// A token goes once to each rank that has one of its experts (a replica: the one that its index on
// this rank chooses; slices: all), with its local experts and scores. One exchange of counts tells
// each rank what comes; the host reads them, once in a call of route() and rows(), after it has
// asked for all that needs no number: so of what goes out as many rows are made as could go.
//
//   kFast   a rank adds up its own rows of a token, one row comes back, and the token's owner adds
//           those in rank order: the bits of virtual_ranks_dispatcher
//   kExact  every routed row comes back, and the owner adds them in slot order: the bits of one
//           process that has the tokens of all ranks, in rank order, for outputs, gradients of
//           inputs and scores, and those of an expert that one rank holds whole
// The gradients come back as the results do; those of scores, too, are added over slices.
//
// WireType::kInt8: rows of x and of grad_out go out in 8 bits (wire.h), also those that stay on
// their rank, so that a result does not depend on which rank an expert is on. Ids, scores, counts
// and all that comes back go as they are. A group of one rounds nothing. Not with kExact: outputs
// and gradients differ by about 1 %.
//
// Capacity (C6): an expert has exactly as many rows as the capacities of all ranks together. Budget
// (C7): this rank's, of the rows that it receives. Ranks may have no tokens, no experts, or
// neither.
#pragma once

#include <memory>

#include "troupe/distributed/dispatch/dispatch_mode.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/group/group.h"

namespace troupe {

// The placement's rank r is the group's: each of the group makes the same calls in the same order.
std::unique_ptr<Dispatcher> a2a_dispatcher(std::shared_ptr<RankGroup> ranks,
                                           const Placement& placement, DispatchMode mode,
                                           WireType wire = WireType::kNative);

}  // namespace troupe
