// All dispatcher kinds: the one list. To add one is its header, source and test, and its config
// here (dispatcher_config.h says what a config answers).
#pragma once

#include <memory>
#include <string>

#include "troupe/core/config/one_of.h"
#include "troupe/distributed/dispatch/all_gather_dispatcher.h"
#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/distributed/dispatch/null_dispatcher.h"
#include "troupe/distributed/dispatch/symmetric_dispatcher.h"
#include "troupe/distributed/dispatch/two_level_dispatcher.h"

namespace troupe {

// Not chosen yet: chosen_for() makes one of the others of it.
struct AutoDispatch {
  static constexpr std::string_view kKind = "auto";
  static constexpr std::string_view kHelp =
      "two_level where the ranks fill several hosts, else all_to_all";
  static void visit(auto&, auto&&) {}
  bool operator==(const AutoDispatch&) const = default;
};

using DispatcherConfig = OneOf<AutoDispatch, AllToAllDispatch, AllGatherDispatch, TwoLevelDispatch,
                               SymmetricDispatch, NullDispatch>;

// `config`, or if that is auto: two_level where the ranks fill several nodes, else all_to_all.
DispatcherConfig chosen_for(const DispatcherConfig& config, const ExpertRanks& ranks);
// True of auto too.
bool may_use_nodes(const DispatcherConfig& config);
// Whether the ranks that share experts must be of one machine; not of auto.
bool needs_one_host(const DispatcherConfig& config);

// Whether rows reach their experts: all but what times steps without transfers. True of auto.
bool sends_rows(const DispatcherConfig& config);

// The questions of dispatcher_config.h, asked of the config that is chosen. Throw for auto.
std::unique_ptr<Dispatcher> build(const DispatcherConfig& config, const NodeGroups& groups,
                                  const ExpertPlacement& placement,
                                  const DispatcherOptions& options);
std::string why(const DispatcherConfig& config, const ExpertRanks& ranks);
Traffic traffic(const DispatcherConfig& config, const TrafficShape& shape);

}  // namespace troupe
