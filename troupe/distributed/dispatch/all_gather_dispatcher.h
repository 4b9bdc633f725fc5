// The dispatcher of several processes that all-gathers the tokens: where nearly every rank needs
// nearly every token, that is hardly more traffic than sending each to the ranks of its experts,
// and no size depends on the routing. Buffers are sized by the largest number of tokens of a rank,
// which the ranks exchange and the host reads once in a call of rows().
//
// Modes, types of the wire and results are those of all_to_all_dispatcher, bit for bit. kFast sends back
// one row for each token and rank, kExact one for each slot and rank, which is K times as much.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "troupe/distributed/dispatch/dispatcher_config.h"

namespace troupe {

std::unique_ptr<Dispatcher> all_gather_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                  const ExpertPlacement& placement,
                                                  DispatchMode mode,
                                                  WireType wire = WireType::kNative);

struct AllGatherDispatch {
  static constexpr std::string_view kKind = "all_gather";
  static constexpr std::string_view kHelp = "all rows to all ranks";
  static constexpr bool kUsesNodes = false;
  static constexpr bool kNeedsOneHost = false;
  static void visit(auto&, auto&&) {}
  bool operator==(const AllGatherDispatch&) const = default;
  std::unique_ptr<Dispatcher> build(const NodeGroups& groups, const ExpertPlacement& placement,
                                    const DispatcherOptions& options) const;
  std::string why(const ExpertRanks& ranks) const;
  Traffic traffic(const TrafficShape& shape) const;
};

}  // namespace troupe
