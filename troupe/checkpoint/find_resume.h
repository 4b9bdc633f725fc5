// Which step of a run folder to go on from, and what a run folder is otherwise asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/checkpoint/config.h"
#include "troupe/checkpoint/manifest.h"

namespace troupe {

struct ResumePoint {
  std::string folder;  // RUN/step-001200
  Manifest manifest;
  std::vector<std::string> passed_over;  // "step 1300: incomplete: no manifest.json"
};

// The newest step whose manifest is whole and whose files have the sizes that it says; by number,
// whatever the files' times. A step tagged bad is passed over. `before`: only steps below it.
// Nothing: a fresh start, under kAuto and kNever. Throws E4002 under kMust, and under kStep if that
// very step is not complete.
std::optional<ResumePoint> find_resume(const std::string& run, const Resume& resume,
                                       std::optional<int64_t> before = {});

std::string step_name(int64_t step);                      // "step-001200"
std::optional<int64_t> step_of(const std::string& name);  // of a folder's name
std::vector<int64_t> steps_in(const std::string& run);    // ascending; folders alone

}  // namespace troupe
