// How many of something go to each rank of a group, and come from each.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace troupe {

struct Split {
  std::vector<int64_t> to, from;
  int64_t sent() const { return std::accumulate(to.begin(), to.end(), int64_t{0}); }
  int64_t received() const { return std::accumulate(from.begin(), from.end(), int64_t{0}); }
};

}  // namespace troupe
