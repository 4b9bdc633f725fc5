// The one list of schedules. A builder is a struct with kKind, visit() and build().
#pragma once

#include "troupe/core/config/one_of.h"
#include "troupe/schedule/accumulate.h"
#include "troupe/schedule/data_parallel.h"
#include "troupe/schedule/full_shard.h"

namespace troupe {

using ScheduleConfig = OneOf<Accumulate, DataParallel, FullShard>;

// How replicas share their state: not at all, the optimizer's part, or all of it.
struct StateSharing {
  bool full = false, zero1 = false;
  int prefetch = 1;
  bool reshard = true;
};
// What a run builds: the one rule of trainer, forecast and proof.
ScheduleConfig config_of(const StateSharing& sharing, const StepWork& work);

Schedule build_schedule(const ScheduleConfig& config, const StepWork& work);  // verified

}  // namespace troupe
