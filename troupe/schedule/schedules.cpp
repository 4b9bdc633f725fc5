#include "troupe/schedule/schedules.h"

#include <variant>

#include "troupe/core/check.h"
#include "troupe/schedule/verify.h"

namespace troupe {

Schedule build_schedule(const ScheduleConfig& config, const StepWork& work) {
  TROUPE_CHECK(work.chunks > 0 && work.microbatches > 0 && work.ranks > 0, "chunks", work.chunks,
               "microbatches", work.microbatches, "ranks", work.ranks);
  Schedule out = std::visit([&](const auto& c) { return c.build(work); }, config);
  verify(out, work);
  return out;
}

}  // namespace troupe
