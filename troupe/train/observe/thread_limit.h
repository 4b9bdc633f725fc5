// What the system refuses of threads: by ulimit -u, by pids.max of the control group, or for want of
// memory for their stacks.
#pragma once

#include <exception>
#include <optional>

#include "troupe/core/check.h"

namespace troupe {

// Starts as many threads as PyTorch computes with, all at once, and ends them: E7002 where the
// system refuses one. OpenMP, which starts them later, would end the process with 1 and no word of
// ours.
void require_threads();

// E7002 for an exception that says that a thread was refused; nothing for others.
std::optional<Error> refused_thread(const std::exception& error);

}  // namespace troupe
