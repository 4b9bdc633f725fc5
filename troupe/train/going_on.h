// What a run may not silently do otherwise than the run that it goes on from: its data, model and
// seed are the checkpoint's fingerprint; here is its schedule.
#pragma once

#include <string>

#include "troupe/train/recipe.h"

namespace troupe {

// A run of length `was` stopped at `done` and would now be of length `now`. Empty if the steps so
// far would have had the same learning rate and weight decay (a constant rate, wsd before its tail,
// a schedule with an `end` of its own), else what changes.
std::string other_schedule(const TrainConfig& train, const Position& done, const Position& was,
                           const Position& now);

}  // namespace troupe
