// Patterns over names: a name, or its beginning and a *.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline bool matches(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                : name == pattern;
}

inline bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& pattern) { return matches(pattern, name); });
}

}  // namespace troupe
