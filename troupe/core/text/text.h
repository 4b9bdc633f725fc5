// Text to a value and back, for what a config's field may hold.
//   bool from_text(text, out)            all of the text, or false: refused, `out` undefined
//   std::string to_text(value)           the shortest text that reads back as the same bits
//   Expectation expectation(text, out)   optional: what to tell the user when from_text refused
// An enum needs one function beside it, found by argument-dependent lookup:
//   constexpr auto names_of(Norm) { return std::array{Named{"rms", Norm::kRms}, ...}; }
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "troupe/core/text/suggest.h"

namespace troupe {

struct Expectation {
  std::string wanted;      // "an integer of at least 0"
  std::string guess = {};  // what was probably meant, or nothing
};

template <class E>
struct Named {
  std::string_view name;
  E value;
};
template <class E>
Named(const char*, E) -> Named<E>;

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E e) {
  names_of(e);
};

inline bool from_text(std::string_view text, std::string& out) {
  return out = text, true;
}

inline bool from_text(std::string_view text, bool& out) {
  return (out = text == "true") || text == "false";
}

// Refused: more than the type holds, NaN and infinities, and leading zeros, since YAML's versions
// disagree whether 017 is 15.
template <class T>
requires std::is_arithmetic_v<T>
bool from_text(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(out);
  const std::string_view digits = text.substr(text.front() == '-');
  return digits.size() == 1 || digits.front() != '0';
}

template <NamedEnum E>
bool from_text(std::string_view text, E& out) {
  for (const auto& [name, value] : names_of(E{})) {
    if (name == text) return out = value, true;
  }
  return false;
}

// In double quotes, with escapes that YAML and JSON both read.
std::string to_text(const std::string& value);

inline std::string to_text(bool value) {
  return value ? "true" : "false";
}

template <class T>
requires std::is_arithmetic_v<T> std::string to_text(T value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

template <NamedEnum E>
std::string to_text(E e) {
  for (const auto& [name, value] : names_of(E{})) {
    if (value == e) return std::string(name);
  }
  return "?";
}

Expectation expectation(std::string_view text, const bool& out);

template <class T>
requires std::is_arithmetic_v<T> Expectation expectation(std::string_view text, const T&) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>) return {"a number"};
  // A type's bound says something to whoever has passed it alone.
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative);
  const bool whole =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
  if (whole && !negative && digits.front() != '0') {
    return {"an integer of at most " + to_text(Limits::max())};
  }
  if (Limits::min() == 0 || (whole && negative && digits.front() != '0')) {
    return {"an integer of at least " + to_text(Limits::min())};
  }
  return {"an integer"};
}

template <NamedEnum E>
Expectation expectation(std::string_view text, const E&) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : names_of(E{})) names.push_back(name);
  return {"one of " + joined(names), std::string(nearest_choice(text, names))};
}

}  // namespace troupe
