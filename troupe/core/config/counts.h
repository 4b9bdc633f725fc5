// Bounds of a config's counts, looked at before anything is computed, made or repeated with them:
// one large number in a file must neither overflow, nor fill the memory, nor run for hours.
//   for (const CountFault& fault : counts_out_of_bounds(config, {{"layers", 1024}})) ...
// A field says its bound itself (AtMost of facts.h), or one is given for every field of a name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "troupe/core/config/config_traits.h"
#include "troupe/core/config/facts.h"
#include "troupe/core/text/units.h"

namespace troupe {

struct CountBound {
  std::string_view name;  // the last part of a path: "experts" is also that of "shared.experts"
  int64_t most;
};
inline constexpr int64_t kMostCount = int64_t{1} << 40;  // where neither says one

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

// f(path, value, fact) for each value that is no section, with its field's Fact or null.
template <class Fact, class T, class F>
void for_each_value(const T& value, const std::string& path, F&& f, const Fact* fact = nullptr) {
  if constexpr (kIsOptional<T>) {
    if (value) for_each_value<Fact>(*value, path, f, fact);
  } else if constexpr (Config<T>) {
    T::visit(value, [&](std::string_view name, const auto& member, const auto&... facts) {
      for_each_value<Fact>(member, join(path, name), f, fact_of<Fact>(facts...));
    });
  } else if constexpr (kIsList<T>) {
    for (size_t i = 0; i < value.size(); ++i) {
      for_each_value<Fact>(value[i], join(path, i), f, fact);
    }
  } else {
    f(path, value, fact);
  }
}

}  // namespace detail

// Negative numbers as far below 0 are out of bounds too; whether one may be negative, validate()
// of the config says.
template <Config C>
std::vector<CountFault> counts_out_of_bounds(const C& config,
                                             std::span<const CountBound> bounds = {},
                                             const std::string& path = "") {
  std::vector<CountFault> out;
  const auto check = [&](const std::string& at, int64_t value, const AtMost* stated) {
    const int64_t most = stated != nullptr ? stated->most : detail::most_of(at, bounds);
    if (-most <= value && value <= most) return;
    out.push_back(
        {at, "is " + std::to_string(value) + "; at most " + std::to_string(most) + " is taken"});
  };
  detail::for_each_value<AtMost>(
      config, path, [&]<class T>(const std::string& at, const T& value, const AtMost* stated) {
        if constexpr (std::is_same_v<T, int64_t>) check(at, value, stated);
        if constexpr (std::is_same_v<T, Count> || std::is_same_v<T, Bytes>) {
          check(at, value.value, stated);
        }
      });
  return out;
}

// Paths of the negative numbers among the fields that state kNotNegative.
template <Config C>
std::vector<std::string> negative_fields(const C& config) {
  std::vector<std::string> out;
  detail::for_each_value<NotNegative>(
      config, "", [&]<class T>(const std::string& at, const T& value, const NotNegative* stated) {
        if constexpr (std::is_arithmetic_v<T> && std::is_signed_v<T>) {
          if (stated != nullptr && value < 0) out.push_back(at);
        }
      });
  return out;
}

}  // namespace troupe
