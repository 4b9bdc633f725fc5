// The dispatcher of ranks that reach each other's memory: each rank lays its tokens and their
// routing into memory that its peers map, and a rank with experts reads the rows that it needs, and
// no others, from where they are. Results are read back the same way by the token's owner. There
// are no collectives, no messages of counts, and nothing is received that was not asked for.
//
// A token's row crosses once for each other rank that has one of its experts, as with
// all_to_all_dispatcher. Buffers are those of all_gather_dispatcher: a source row for each token of each
// rank, padded to the largest number of tokens; rows without an expert here are zeros. No row count
// is read from the device.
//
// The largest number of tokens is Routed::most where the caller says it: then send() waits for no
// other host, and ranks may send fewer, as many as they like in each call. Else hosts exchange their
// numbers once per send(). A host cannot see by itself that another's number has changed since, nor
// make a larger row fit where the others have left it no room; so numbers are not kept from one
// call for the next. Where ranks have said different numbers, or one of them none, transfers differ,
// and every rank gets E6001 (symmetric_heap.h): at once, or after the group's timeout.
//
// Modes, types of the wire and results are those of all_to_all_dispatcher, bit for bit. kExact reads back
// a row for each slot, which is K times as much room.
//
// Forward and backward can be captured in a CUDA graph, by all ranks, behind a call of the same sizes
// that was not; the graph has the bits of plain calls (symmetric_heap.h).
//
// Memory: SymmetricHeap::kSlots transfers of the largest kind, W T rows (kExact: W T K), once for
// all layers of the group. It grows where a call has more tokens than any before.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "troupe/distributed/dispatch/dispatcher_config.h"

namespace troupe {

std::unique_ptr<Dispatcher> symmetric_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                 const ExpertPlacement& placement,
                                                 DispatchMode mode,
                                                 WireType wire = WireType::kNative);

struct SymmetricDispatch {
  static constexpr std::string_view kKind = "symmetric";
  static constexpr std::string_view kHelp =
      "rows read from the memory of the other ranks of a host";
  static constexpr bool kUsesNodes = false;
  static constexpr bool kNeedsOneHost = true;
  static void visit(auto&, auto&&) {}
  bool operator==(const SymmetricDispatch&) const = default;
  std::unique_ptr<Dispatcher> build(const NodeGroups& groups, const ExpertPlacement& placement,
                                    const DispatcherOptions& options) const;
  std::string why(const ExpertRanks& ranks) const;
  Traffic traffic(const TrafficShape& shape) const;
};

}  // namespace troupe
