#include "troupe/schedule/schedules.h"

#include <variant>

#include "troupe/schedule/verify.h"

namespace troupe {

Schedule build_schedule(const ScheduleConfig& config, const StepWork& work) {
  validate(work);
  Schedule out = std::visit([&](const auto& c) { return c.build(work); }, config);
  verify(out, work);
  return out;
}

}  // namespace troupe
