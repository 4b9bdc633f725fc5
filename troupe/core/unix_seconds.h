// Seconds since 1970-01-01 00:00 UTC by the system's clock, with a fraction: for what people and other
// machines read (logs, heartbeats). The clock may be set back; durations are a steady_clock's.
#pragma once

#include <chrono>

namespace troupe {

inline double unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

}  // namespace troupe
