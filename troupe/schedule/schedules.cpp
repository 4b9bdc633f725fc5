#include "troupe/schedule/schedules.h"

#include <variant>

#include "troupe/schedule/verify.h"

namespace troupe {

ScheduleConfig config_of(const StateSharing& sharing, const StepWork& work) {
  if (work.replicas == 1 && (work.ranks == 1 || !sharing.full)) return Accumulate{};
  if (sharing.full) return FullShard{.prefetch = sharing.prefetch, .reshard = sharing.reshard};
  return DataParallel{.sharded = sharing.zero1};
}

Schedule build_schedule(const ScheduleConfig& config, const StepWork& work) {
  validate(work);
  Schedule out = std::visit([&](const auto& c) { return c.build(work); }, config);
  verify(out, work);
  return out;
}

}  // namespace troupe
