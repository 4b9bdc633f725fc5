// An option whose value has a unit or is one of a list, read as a recipe's field is.
#pragma once

#include <CLI/App.hpp>

#include <string>

#include "troupe/core/text/text.h"
#include "troupe/core/text/units.h"

namespace troupe {

template <class T>
CLI::Option* add_value(CLI::App& verb, const std::string& names, T& value,
                       const std::string& help) {
  const auto read = [&value](const std::string& text) {
    if (from_text(text, value)) return;
    const Expectation wanted = expectation(text, value);
    const std::string guess = wanted.guess.empty() ? "" : "; did you mean " + wanted.guess + "?";
    throw CLI::ValidationError(text, wanted.wanted + " is expected" + guess);
  };
  return verb.add_option_function<std::string>(names, read, help)
      ->default_str(std::string(to_text(value)));
}

}  // namespace troupe
