// Checks on resume, besides the checkpoint's fingerprint (data, model, seed): the learning rate
// schedule, lost checkpoints, counters.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/step/train_state.h"

namespace troupe {

// A run of length `was` stopped at `done` and resumes with length `now`. Empty if its steps so far
// would have had the same learning rate and weight decay (a constant rate, wsd before its tail, a
// schedule with an `end`), else what changes.
std::string other_schedule(const TrainConfig& train, const Position& done, const Position& was,
                           const Position& now);

// The training settings that differ from `was`, with both values, on one line:
// "train.clip 1 -> 0.5, ...". Empty: none differ. It leaves out those that the fingerprint,
// other_schedule() and the layout compare.
std::string other_training(const TrainConfig& was, const TrainConfig& now);
// For a run that resumes: tells them once, beside the recipe that its last start left in the
// folder.
void warn_of_other_training(const std::string& run, const TrainConfig& now, const Log& log);

// Traces in a run folder of checkpoints that are missing: "latest says step-000200". Empty: none.
std::string lost_steps(const std::string& run);
// For a run that found no checkpoint to resume from: throws E4002 if there were some, unless
// `force`; warns of an earlier start's log.
void refuse_lost_steps(const CheckpointConfig& config, bool force, const Log& log);

// Warns if users other than this one may write to a run's folder: they could leave a checkpoint
// there that the next start resumes from.
void warn_of_other_users(const std::string& run, const Log& log);

// Removes what a killed run left in the folder, which saves would do, but a finished run makes
// none. Not if another process writes to the folder.
void clear_leftovers(Fs& fs, const std::string& run, const Log& log);

// Throws E4004 if a checkpoint's counters are impossible: negative, of a different step than the
// checkpoint's, or experts on ranks that do not exist. `folder` is its path.
void require_counters(const TrainState& state, int64_t step, const std::string& folder);

// The run's state in a checkpoint, with its counters checked. E4005 with the names of what is
// missing: a counter that restarts at 0 would repeat data, or the optimizer's first steps. Fields
// that the first versions did not write keep their defaults.
TrainState read_state(const Manifest& manifest, const std::string& folder);

// The command that trains twice as long as a finished run of length `run`: `command`, which started
// it, with the settings that change.
std::string twice_as_long(const ResolvedRun& recipe, const Position& run,
                          const std::string& command);

}  // namespace troupe
