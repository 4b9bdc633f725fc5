// A dispatcher that sends nothing and drops nothing, to time a layer without its transfers: each
// token goes to experts of its own rank, expert e to the (e mod held)-th of those held here. There
// are as many rows, products and gradients as with even routing; the model is another one, so no
// training uses it (sends_rows() in dispatchers.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "troupe/distributed/dispatch/dispatcher_config.h"

namespace troupe {

std::unique_ptr<Dispatcher> null_dispatcher(int64_t rank, const ExpertPlacement& placement);

struct NullDispatch {
  static constexpr std::string_view kKind = "none";
  static constexpr std::string_view kHelp =
      "no row leaves its rank: to time steps without transfers (troupe bench)";
  static constexpr bool kUsesNodes = false;
  static constexpr bool kNeedsOneHost = false;
  static constexpr bool kForTimingAlone = true;
  static void visit(auto&, auto&&) {}
  bool operator==(const NullDispatch&) const = default;
  std::unique_ptr<Dispatcher> build(const NodeGroups& groups, const ExpertPlacement& placement,
                                    const DispatcherOptions& options) const;
  std::string why(const ExpertRanks& ranks) const;
  Traffic traffic(const TrafficShape& shape) const;
};

}  // namespace troupe
