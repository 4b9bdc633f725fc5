// Patterns over names: "layers.3.*" matches "layers.3.mlp.w1". * stands for any text, also none.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  for (size_t i = star; i <= name.size(); ++i) {
    if (matches(pattern.substr(star + 1), name.substr(i))) return true;
  }
  return false;
}

inline bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& pattern) { return matches(pattern, name); });
}

}  // namespace troupe
