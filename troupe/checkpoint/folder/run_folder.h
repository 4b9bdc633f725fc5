// The run's folder: makes it, keeps other writers out, and removes what is not to be kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/checkpoint/folder/config.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/core/file/fault.h"
#include "troupe/core/file/publish.h"

namespace troupe {

// Makes the folder and those above it; throws E2008 if it cannot be made or written to.
void prepare_run_folder(Fs& fs, const std::string& run);

// Why the folder, or the nearest one above it that is there, cannot be written to; empty: it can.
// Nothing is made.
std::string why_not_writable(const std::string& run);

// One process a run: a lock on RUN/lock that ends with the process, however it ends. Throws E7005
// with process, machine and age where another holds it.
class RunLock {
 public:
  explicit RunLock(const std::string& run);
  static std::unique_ptr<RunLock> if_free(const std::string& run);  // null instead of throwing
  // False: RUN/lock was deleted, alone or with the folder. Throws E7005 with the new place where the
  // folder was moved while this lock was held: RUN is free for another run then.
  bool is_in_place() const;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();
  // "took over from process 12 on host, which ended without ..": whose lock was left; else empty.
  const std::string& taken_over() const { return taken_over_; }

 private:
  std::string path_;
  int fd_ = -1;
  std::string taken_over_;
};

// What a disk needs at its fullest for steps of `bytes`: (keep + 1) of them. Empty: there is room;
// else a line with both numbers.
std::string space_warning(const std::string& run, int64_t bytes, int64_t keep);

// Renames the staging folder to the step's name, or changes places with what stands there, syncs,
// then points `latest` at it unless it is tagged bad.
void publish_step(Fs& fs, const Faults& faults, const std::string& run, const std::string& staging,
                  const Manifest& manifest);

// Removes the complete steps that the config does not keep; never the newest, never the one just
// written, and no incomplete folder, which may be a copy under way. The newest bad one stays;
// where all good ones do (keep: 0), no manifest is read unless the one just written is bad.
// Returns the steps removed. `note` gets a line for one that cannot be removed.
std::vector<int64_t> prune(Fs& fs, const Faults& faults, const CheckpointConfig& config,
                           int64_t just_written,
                           const std::function<void(const std::string&)>& note);

std::string new_run_id();  // 16 hex digits, from the system's randomness

// Renames complete steps after `step` to "step-001300.aside", or with a number where that is taken:
// they belong to an abandoned branch and must not be taken for this run's. Returns a line each.
std::vector<std::string> set_aside_later(Fs& fs, const std::string& run, int64_t step);

// Removes what was set aside (step-001300.aside, .aside2 ...) once config.keep good steps after it,
// of the same run, stand: the run has passed it. Stays: all where keep is 0, a multiple of
// keep_every, another run's (a start with resume: never), a link, an incomplete folder. Returns a
// line each; `note` gets one for a folder that cannot be removed.
std::vector<std::string> prune_set_aside(Fs& fs, const CheckpointConfig& config,
                                         const std::function<void(const std::string&)>& note);

}  // namespace troupe
