// The one list of schedules. A builder is a struct with kKind, visit() and build().
#pragma once

#include "troupe/core/one_of.h"
#include "troupe/schedule/accumulate.h"

namespace troupe {

using ScheduleConfig = OneOf<Accumulate>;

Schedule build_schedule(const ScheduleConfig& config, const StepWork& work);  // verified

}  // namespace troupe
