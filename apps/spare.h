// A spare is a process of `troupe launch --spares` that waits for a rank's place: the program and
// its libraries are loaded, its device is open, and each operator has run once. It has joined
// nothing and holds no port and no file of the run. Then process lists call it "troupe spare".
//
// Its environment is that of the rank whose place it waits for, but for the attempt, which is not
// known yet: it comes as a text through the pipe that kSpareVariable names. The pipe closed without
// one says that no spare is needed any more.
#pragma once

#include "apps/train_options.h"

namespace troupe {

constexpr const char* kSpareVariable = "TROUPE_SPARE";  // a descriptor; no spare where it is unset
constexpr const char* kAttemptVariable = "TORCHELASTIC_RESTART_COUNT";

// In a process that is no spare, nothing. In one that is: makes it ready, waits, and returns once
// it is to be a rank, with its environment completed; else ends the process. SIGTERM and SIGINT end
// it while it waits.
void wait_if_spare(const TrainOptions& options);

}  // namespace troupe
