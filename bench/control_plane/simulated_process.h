// The process that a simulated rank says it is: on a host of its own, with a text as long as a real
// one's (a boot id and a name space of processes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "troupe/distributed/status/process.h"

namespace troupe::control_plane {

inline Process simulated_process(int64_t rank) {
  constexpr size_t kLength = 52;
  constexpr int kFirst = 100'000;
  Process out{.machine = "host-" + std::to_string(rank), .id = kFirst + static_cast<int>(rank)};
  out.machine.resize(kLength, '.');
  return out;
}

}  // namespace troupe::control_plane
