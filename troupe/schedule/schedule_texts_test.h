// For tests: a built schedule as text, and what its faults name.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "troupe/schedule/schedules.h"
#include "troupe/schedule/text.h"

namespace troupe {

using ScheduleFaults = std::vector<std::string>;

inline std::string text(const ScheduleConfig& config, const StepWork& work) {
  return to_text(build_schedule(config, work));
}

// Whether one of them has `what` in its line.
inline bool names(const ScheduleFaults& faults, const std::string& what) {
  return std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) {
    return fault.find(what) != std::string::npos;
  });
}

}  // namespace troupe
