// Where every thread of this process is, for SIGUSR2: a run that seems to hang says in what.
#pragma once

#include <string>

namespace troupe {

// A line a thread, its innermost function first:
//   thread 4711 troupe: clock_nanosleep < troupe::Faults::hit < troupe::Trainer::next_feed < ...
// Each is asked by a signal (SIGRTMAX - 2, whose handler this sets) and answers within 0.2 s or is
// said to have not; none is stopped. Functions without an exported name are "library+offset".
std::string stacks_of_all_threads();

}  // namespace troupe
