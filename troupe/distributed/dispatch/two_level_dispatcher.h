// The dispatcher for ranks on several nodes, between which the links are slow: a token crosses once
// to each node that has one of its experts, whatever number of that node's ranks need it.
//
// The group's ranks are cut into nodes of R: rank n R + r is place r of node n. Rows go in two
// exchanges, over c10d's all-to-all each:
//   across   from rank (m, r) to (n, r), the rank of its own place: one row for each (token, node)
//   within   from (n, r) to the ranks of node n that have an expert of the token: one row for each
// and back the same two ways. What the ranks of a node hold is then put into the canonical order,
// so experts, plans and results do not know by which ways rows came:
//
//   kFast   a rank adds up its own rows of a token, the rank (n, r) those of its node's ranks in
//           rank order, the token's owner those of the nodes in node order; each sum is rounded to
//           the rows' type. One row crosses back for each (token, node). The bits are those of
//           all_to_all_dispatcher where a token's node has one rank or there is one node; else only
//           the order of that sum differs
//   kExact  every routed row comes back and the owner adds them in slot order: the bits of
//           all_to_all_dispatcher, hence of one process; a token sends as many rows across as it
//           has choices on the other nodes
// Gradients go the same ways. Those of scores and of weights have all_to_all_dispatcher's bits in
// both modes, except scores of experts that are cut by their width (H2) under kFast.
//
// WireType::kInt8, kFp8: as in all_to_all_dispatcher, rounded once: within a node the bytes that
// came across are passed on.
//
// The host reads row counts of both exchanges, once in a call of route() and rows(). Capacity,
// budget, replicas and ranks without tokens or experts: as all_to_all_dispatcher. All collectives run in
// every call.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "troupe/distributed/dispatch/dispatcher_config.h"

namespace troupe {

std::unique_ptr<Dispatcher> two_level_dispatcher(const NodeGroups& groups,
                                                 const ExpertPlacement& placement,
                                                 DispatchMode mode,
                                                 WireType wire = WireType::kNative);

struct TwoLevelDispatch {
  static constexpr std::string_view kKind = "two_level";
  static constexpr std::string_view kHelp = "each row once per node, then within it";
  static constexpr bool kUsesNodes = true;
  static constexpr bool kNeedsOneHost = false;
  static void visit(auto&, auto&&) {}
  bool operator==(const TwoLevelDispatch&) const = default;
  std::unique_ptr<Dispatcher> build(const NodeGroups& groups, const ExpertPlacement& placement,
                                    const DispatcherOptions& options) const;
  std::string why(const ExpertRanks& ranks) const;
  Traffic traffic(const TrafficShape& shape) const;
};

}  // namespace troupe
