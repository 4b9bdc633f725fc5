#include "troupe/distributed/dispatch/dispatchers.h"

#include <type_traits>
#include <variant>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/dispatcher.h"

namespace troupe {
namespace {

template <class Question>
auto asked(const DispatcherConfig& config, const Question& question) {
  return std::visit(
      [&]<class C>(const C& c) -> decltype(question(AllToAllDispatch())) {
        if constexpr (std::is_same_v<C, AutoDispatch>) {
          throw Error("the dispatcher is still auto: chosen_for() comes first");
        } else {
          return question(c);
        }
      },
      config);
}

}  // namespace

DispatcherConfig chosen_for(const DispatcherConfig& config, const ExpertRanks& ranks) {
  if (!std::holds_alternative<AutoDispatch>(config)) return config;
  if (ranks.fill_nodes()) return TwoLevelDispatch();
  return AllToAllDispatch();
}

bool may_use_nodes(const DispatcherConfig& config) {
  return std::holds_alternative<AutoDispatch>(config) ||
         asked(config, [](const auto& c) { return c.kUsesNodes; });
}

bool needs_one_host(const DispatcherConfig& config) {
  return !std::holds_alternative<AutoDispatch>(config) &&
         asked(config, [](const auto& c) { return c.kNeedsOneHost; });
}

bool sends_rows(const DispatcherConfig& config) {
  return std::holds_alternative<AutoDispatch>(config) || asked(config, [](const auto& c) {
           return !requires {
             c.kForTimingAlone;
           };
         });
}

std::unique_ptr<Dispatcher> build(const DispatcherConfig& config, const NodeGroups& groups,
                                  const ExpertPlacement& placement,
                                  const DispatcherOptions& options) {
  return asked(config, [&](const auto& c) { return c.build(groups, placement, options); });
}

std::string why(const DispatcherConfig& config, const ExpertRanks& ranks) {
  return asked(config, [&](const auto& c) { return c.why(ranks); });
}

Traffic traffic(const DispatcherConfig& config, const TrafficShape& shape) {
  return asked(config, [&](const auto& c) { return c.traffic(shape); });
}

}  // namespace troupe
