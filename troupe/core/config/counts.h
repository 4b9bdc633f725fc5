// Bounds of a config's counts, looked at before anything is computed, made or repeated with them:
// one large number in a file must neither overflow, nor fill the memory, nor go on for hours.
//   for (const CountFault& fault : counts_out_of_bounds(config, {{"layers", 1024}})) ...
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "troupe/core/config/config_traits.h"
#include "troupe/core/text/units.h"

namespace troupe {

struct CountBound {
  std::string_view name;  // the last part of a path: "experts" is also that of "shared.experts"
  int64_t most;
};
inline constexpr int64_t kMostCount = int64_t{1} << 40;  // of a name that no bound has

struct CountFault {
  std::string path;
  std::string what;  // "is 9223372036854775807; at most 1024 is taken"
};

namespace detail {

inline int64_t most_of(const std::string& path, std::span<const CountBound> bounds) {
  std::string_view name = path;
  name = name.substr(name.find_last_of('.') + 1);  // npos + 1 is 0
  name = name.substr(0, name.find('['));
  for (const CountBound& bound : bounds) {
    if (bound.name == name) return bound.most;
  }
  return kMostCount;
}

// f(path, value) for each whole number that counts something. Spans and durations are none.
template <class T, class F>
void for_each_count(const T& value, const std::string& path, F&& f) {
  if constexpr (kIsOptional<T>) {
    if (value) for_each_count(*value, path, f);
  } else if constexpr (Config<T>) {
    T::visit(value, [&](std::string_view name, const auto& member, auto&&...) {
      for_each_count(member, join(path, name), f);
    });
  } else if constexpr (kIsList<T>) {
    for (size_t i = 0; i < value.size(); ++i) for_each_count(value[i], join(path, i), f);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    f(path, value);
  } else if constexpr (std::is_same_v<T, Count> || std::is_same_v<T, Bytes>) {
    f(path, value.value);
  }
}

}  // namespace detail

// Negative numbers as far below 0 are out of bounds too; whether one may be negative, validate()
// of the config says.
template <Config C>
std::vector<CountFault> counts_out_of_bounds(const C& config, std::span<const CountBound> bounds,
                                             const std::string& path = "") {
  std::vector<CountFault> out;
  detail::for_each_count(config, path, [&](const std::string& at, int64_t value) {
    const int64_t most = detail::most_of(at, bounds);
    if (-most <= value && value <= most) return;
    out.push_back(
        {at, "is " + std::to_string(value) + "; at most " + std::to_string(most) + " is taken"});
  });
  return out;
}

}  // namespace troupe
