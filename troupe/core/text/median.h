#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe {

// The median; for an even number of values the upper middle one. There must be one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace troupe
