// Finds the step of a run folder to resume from, and answers other questions about the folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/checkpoint/folder/config.h"

namespace troupe {

struct ResumePoint {
  std::string folder;  // RUN/step-001200
  Manifest manifest;
  std::vector<std::string> passed_over = {};  // "step 1300: incomplete: manifest.json is missing"
  std::string latest_note = {};  // why the file latest was not believed; empty: it says this step
};

// The newest step that is complete: its manifest is whole and its files have their sizes. Newest by
// number, whatever the files' times. A step that is tagged bad is passed over, and those in `tried`
// are not looked at. What the file `latest` says is compared and any difference noted; it never
// decides. Nothing: a fresh start, under kNever, and under kAuto where there is no step at all.
// Throws E4002 where steps are there and none is complete, under kMust where there is none, and
// under kStep where that very step is not complete.
std::optional<ResumePoint> find_resume(const std::string& run, const Resume& resume,
                                       const std::vector<int64_t>& tried = {});

// Whether it is for one start: repeated by a later one, it would undo what was trained since.
bool for_one_start(const Resume& resume);

// The manifest of a complete checkpoint; throws E4002, with the reason, where it is not one.
Manifest check_complete(const std::string& folder);

// What a user names: a run's folder, or one of its steps.
struct RunPath {
  std::string run;
  std::string step = {};  // RUN/step-001200: such a name, or a manifest in it; empty: none named
};
RunPath run_path(std::string path);
// That step, or the run's newest complete one; throws E4002.
ResumePoint find_step(const RunPath& path);

// The folder of that step; the path itself where it names none.
std::string place_of_step(const std::string& path);

std::string step_name(int64_t step);                          // "step-001200"
std::optional<int64_t> step_of(const std::string& name);      // of a folder's name
std::vector<int64_t> steps_in(const std::string& run);        // ascending; folders alone
std::string folder_of(const std::string& run, int64_t step);  // as it is written there

}  // namespace troupe
