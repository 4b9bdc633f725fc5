// The dispatcher of several processes over c10d's all-to-all: between processors over Gloo, between
// GPUs over NCCL, on any topology. It defines what expert parallelism computes; others are faster.
//
// A token is sent once to each rank that has one of its experts, with the experts' local ids and
// scores; its index on this rank chooses one of an expert's replicas, and all slices of an expert
// get it. Ranks exchange row counts, which the host reads once per route() and rows(), after it has
// enqueued all work that needs no count: send buffers are filled for the most rows there can be.
//
//   kFast   a rank adds up its own rows of a token, one row comes back, and the token's owner adds
//           those in rank order: the bits of virtual_ranks_dispatcher
//   kExact  every routed row comes back, and the owner adds them in slot order: the bits of one
//           process that has the tokens of all ranks, in rank order, for outputs, gradients of
//           inputs and scores, and those of an expert that one rank holds whole
// Gradients come back as results do; those of scores are summed over slices too.
//
// WireType::kInt8, kFp8: rows of x and of grad_out go out in 8 bits (wire.h), also those that stay
// on their rank, so that a result does not depend on which rank an expert is on. Ids, scores, counts
// and everything on the way back are sent unrounded. A group of one rank rounds nothing. Outputs
// and gradients differ by about 1 % (int8), so kExact excludes both.
//
// Capacity (C6): an expert has exactly as many rows as the capacities of all ranks together. Budget
// (C7): this rank's, of the rows that it receives. Ranks may have no tokens, no experts, or
// neither.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "troupe/distributed/dispatch/dispatcher_config.h"

namespace troupe {

// The placement's rank r is the group's: each of the group makes the same calls in the same order.
std::unique_ptr<Dispatcher> all_to_all_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                  const ExpertPlacement& placement,
                                                  DispatchMode mode,
                                                  WireType wire = WireType::kNative);

struct AllToAllDispatch {
  static constexpr std::string_view kKind = "all_to_all";
  static constexpr std::string_view kHelp = "each row straight to the ranks of its experts";
  static constexpr bool kUsesNodes = false;
  static constexpr bool kNeedsOneHost = false;
  static void visit(auto&, auto&&) {}
  bool operator==(const AllToAllDispatch&) const = default;
  std::unique_ptr<Dispatcher> build(const NodeGroups& groups, const ExpertPlacement& placement,
                                    const DispatcherOptions& options) const;
  std::string why(const ExpertRanks& ranks) const;
  Traffic traffic(const TrafficShape& shape) const;
};

}  // namespace troupe
