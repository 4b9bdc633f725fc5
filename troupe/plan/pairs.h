// Measured links between pairs of ranks, and which of them are slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct PairRate {
  int64_t a = 0, b = 0;
  bool one_host = true;
  double bandwidth = 0;  // bytes/s in each direction at once
};

// One line for each pair below `part` of the median of its kind (within a host, or between hosts),
// if there are three or more of that kind.
std::vector<std::string> slow_pairs(const std::vector<PairRate>& pairs, double part = 0.5);

}  // namespace troupe
