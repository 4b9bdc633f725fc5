// What the system refuses of threads: by ulimit -u, by pids.max of the control group, or for want of
// memory for their stacks.
#pragma once

#include <exception>
#include <optional>

#include "troupe/core/check.h"

namespace troupe {

// Starts `count` threads less this one, all at once, and ends them: E7002 where the system refuses
// one. Comes before at::set_num_threads(count), whose pool (XNNPACK's) waits forever for a thread
// that was refused; OpenMP, which starts its own later, ends the process with 1 and no message.
void require_threads(int count);

// E7002 for an exception that says that a thread was refused; nothing for others.
std::optional<Error> refused_thread(const std::exception& error);

}  // namespace troupe
