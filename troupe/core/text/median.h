#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe {

// Of an even number of values the upper one in the middle; there must be one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace troupe
