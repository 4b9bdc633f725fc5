// A table of text as a terminal shows it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace troupe {

// A line a row; each cell but a row's last is as wide as the widest of its column, two spaces apart.
inline std::string in_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width;
  for (const std::vector<std::string>& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      if (i + 1 < row.size()) out.append(width[i] - row[i].size() + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

}  // namespace troupe
