// What the config of a dispatcher answers, beside kKind and visit(), and the words it answers in:
//   static constexpr bool kUsesNodes   whether `parallel.node_ranks` means something to it
//   static constexpr bool kNeedsOneHost   whether its ranks must be of one machine
//   static constexpr bool kForTimingAlone   where rows do not reach their experts
//   std::unique_ptr<Dispatcher> build(const DispatcherGroups&, const ExpertPlacement&,
//                                     const DispatcherOptions&) const
//   std::string why(const ExpertRanks&) const    why a run takes it, for the log
//   Traffic traffic(const TrafficShape&) const   what it sends, for forecasts
// The one list of them is dispatchers.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "troupe/distributed/dispatch/dispatch_mode.h"

namespace troupe {

class Dispatcher;
class ExpertPlacement;
class ProcessGroup;

struct DispatcherOptions {
  DispatchMode mode = DispatchMode::kFast;
  WireType wire = WireType::kNative;
  bool by_source = false;  // all_to_all, exact: ExpertRows::parts
};

// The ranks that share experts. `across` and `within` are set where the run has nodes: this rank's
// place on each node, and its node.
struct NodeGroups {
  std::shared_ptr<ProcessGroup> all;
  std::shared_ptr<ProcessGroup> across = {};
  std::shared_ptr<ProcessGroup> within = {};
};

struct ExpertRanks {
  int64_t ranks = 1;  // that share the experts
  int64_t node = 1;   // ranks of a host, or of a node as the recipe cuts them
  bool fill_nodes() const { return ranks > node && ranks % node == 0; }
};

// One layer's forward. `holders(n)` is the mean number of groups, among n equal groups of ranks,
// that hold the K experts of a token.
struct TrafficShape {
  double ranks = 1;  // W, that share the experts
  double node = 1;   // R, ranks of a node; used by dispatchers with kUsesNodes
  double top_k = 1;  // K
  bool exact = false;
  std::function<double(double)> holders;

  double met() const { return holders(ranks); }          // ranks with an expert of a token
  double back() const { return exact ? top_k : met(); }  // rows a token that come back
};

enum class TrafficRanks { kAll, kAcross, kWithin };
enum class TrafficRows { kOut, kBack, kCounts };  // kOut: in the wire's type

// One collective. It sends `rows` rows per token (kCounts: bytes in all), and the fraction `leaves`
// of them goes to other ranks.
struct Message {
  TrafficRanks ranks = TrafficRanks::kAll;
  TrafficRows what = TrafficRows::kOut;
  double rows = 0;
  double leaves = 1;
  bool gathered = false;  // an all-gather; else an all-to-all
};

struct Traffic {
  std::vector<Message> messages = {};
  double received = 0;        // rows a token of this rank that reach ranks with its experts
  double unused_rows = 0;     // room for so many rows a token that never come, and
  double unused_choices = 0;  // for so many rows of experts, since no host knows the counts
  double kept_rows = 0;       // memory for transfers: rows a token, once for all layers
};

}  // namespace troupe
