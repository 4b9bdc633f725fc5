// Links between pairs of ranks, and those of them that are slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct PairRate {
  int64_t a = 0, b = 0;
  bool one_host = true;
  double bandwidth = 0;  // bytes a second, each way at once
};

// A line for each pair that is under `part` of the median: of pairs of one host, or of two, where
// there are three or more of the kind.
std::vector<std::string> slow_pairs(const std::vector<PairRate>& pairs, double part = 0.5);

}  // namespace troupe
