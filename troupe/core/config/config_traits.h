// What a config is made of, for the files that walk one.
#pragma once

#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/one_of.h"
#include "troupe/core/config/yaml.h"

namespace troupe {

// visit(config, f) calls f(name, member) for each field, or f(name, member, help) where `help`
// describes it for config_describe.h: every field of a recipe has one. Behind it there may be facts
// (facts.h), such as its earlier name. Visitors pass over what they do
// not ask for.
template <class C>
concept Config = requires(C& c) {
  C::visit(c, [](std::string_view, auto&, auto&&...) {});
};

template <class C>
concept Choice = Config<C> && requires(C& c) {
  c.select("kind");
};

// A config that can begin as a named one: its field `preset` is read first.
template <class C>
concept HasPresets = Config<C> && requires(C& c) {
  c.select_preset("name");
  C::presets();
};

// What other programs call a field, for "did you mean": their name and our path.
struct Alias {
  std::string_view name;
  std::string_view path;
};
template <class C>
concept HasAliases = requires {
  C::aliases();
};

// Which line or --set gave the value at a path such as "model.moe.top_k"; absent: the default.
using Sources = std::map<std::string, Where>;

namespace detail {

template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

inline std::string join(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : path + '.' + std::string(name);
}
inline std::string join(const std::string& path, size_t i) {
  return path + '[' + std::to_string(i) + ']';
}

}  // namespace detail
}  // namespace troupe
