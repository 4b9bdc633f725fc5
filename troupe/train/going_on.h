// What a run may not silently do otherwise than the run that it goes on from: its data, model and
// seed are the checkpoint's fingerprint; here is its schedule.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/train_state.h"

namespace troupe {

// A run of length `was` stopped at `done` and would now be of length `now`. Empty if the steps so
// far would have had the same learning rate and weight decay (a constant rate, wsd before its tail,
// a schedule with an `end` of its own), else what changes.
std::string other_schedule(const TrainConfig& train, const Position& done, const Position& was,
                           const Position& now);

// Which of a run folder's files tell of checkpoints, of which none is there: "latest says
// step-000200". Empty: none does.
std::string lost_steps(const std::string& run);
// Where no step was found to go on from by itself: throws E4002 where there were some and `force`
// does not start anew all the same; a log of an earlier start is a warning.
void refuse_lost_steps(const CheckpointConfig& config, bool force, const Log& log);

// A finished run makes no save that would clear what a killed one has left: done here, unless
// another process writes to the folder.
void clear_leftovers(Fs& fs, const std::string& run, const Log& log);

// Throws E4004 where a checkpoint's counters cannot be those of a run: below 0, or of another step
// than the checkpoint says. `folder` is its place.
void require_counters(const TrainState& state, int64_t step, const std::string& folder);

// The command that trains on where a run of length `run` has ended, twice as long: `command`, which
// began it, with what has to change.
std::string twice_as_long(const Recipe& recipe, const Position& run, const std::string& command);

}  // namespace troupe
