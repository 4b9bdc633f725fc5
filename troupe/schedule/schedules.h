// The one list of schedules. A builder is a struct with kKind, visit() and build().
#pragma once

#include "troupe/core/config/one_of.h"
#include "troupe/schedule/accumulate.h"
#include "troupe/schedule/data_parallel.h"
#include "troupe/schedule/full_shard.h"

namespace troupe {

using ScheduleConfig = OneOf<Accumulate, DataParallel, FullShard>;

Schedule build_schedule(const ScheduleConfig& config, const StepWork& work);  // verified

}  // namespace troupe
