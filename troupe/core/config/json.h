// Configs as JSON, for small documents that machines read: manifests, exit.json, lines of
// log.jsonl.
//   write_json(os, config)                      one line, every field
//   read_config(parse_json(text, file), config) back again, with the checks of a recipe
#pragma once

#include <cmath>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "troupe/core/codes.h"
#include "troupe/core/config/config_traits.h"
#include "troupe/core/text/text.h"

namespace troupe {

// Throws `fault` on malformed text (also bad UTF-8), a name given twice, nesting over 64, or over
// 1,000,000 names and values. Numbers keep their text; the document knows its file and no lines.
Yaml parse_json(const std::string& text, const std::string& file, Code fault = Code::kBadJson);

namespace detail {

template <class T>
void write_json_value(std::ostream& os, const T& value) {
  if constexpr (kIsOptional<T>) {
    value ? write_json_value(os, *value) : void(os << "null");
  } else if constexpr (Config<T>) {
    const char* separator = "";
    os << '{';
    if constexpr (Choice<T>) {
      os << "\"kind\":" << to_text(std::string(value.kind()));
      separator = ",";
    }
    T::visit(value, [&](std::string_view name, const auto& member, auto&&...) {
      os << std::exchange(separator, ",") << to_text(std::string(name)) << ':';
      write_json_value(os, member);
    });
    os << '}';
  } else if constexpr (kIsList<T>) {
    const char* separator = "";
    os << '[';
    for (const auto& item : value) {
      os << std::exchange(separator, ",");
      write_json_value(os, item);
    }
    os << ']';
  } else if constexpr (std::is_floating_point_v<T>) {
    os << (std::isfinite(value) ? to_text(value) : "null");
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    os << to_text(value);
  } else {
    os << to_text(std::string(to_text(value)));  // an enum or a unit, as in a recipe
  }
}

}  // namespace detail

// A number that is not finite becomes null: JSON has no word for it. Strings must be UTF-8.
template <Config C>
void write_json(std::ostream& os, const C& config) {
  detail::write_json_value(os, config);
}

}  // namespace troupe
