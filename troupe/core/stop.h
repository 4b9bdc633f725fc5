// How a run is asked to stop while something waits, for a network or for other ranks.
#pragma once

#include <functional>

namespace troupe {

// Thrown by what waits. It is no Error: nothing went wrong, and what is done so far can be saved.
struct AskedToStop {};

using StopQuestion = std::function<bool()>;  // any thread may ask; empty: never

inline bool asked(const StopQuestion& stop) {
  return stop && stop();
}

}  // namespace troupe
