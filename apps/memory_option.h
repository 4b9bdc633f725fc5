// --assume-memory: the memory of a machine that is not at hand.
#pragma once

#include <CLI/App.hpp>

#include <string>

#include "troupe/core/check.h"
#include "troupe/train/forecast/forecast.h"

namespace troupe {

struct MemoryOption {
  std::string text;

  void add_to(CLI::App& verb) {
    verb.add_option("--assume-memory", text, "as if the device had so much: 80GiB");
  }
  // What was given, else what the recipe's device has; 0: neither is known.
  double bytes(const Recipe& recipe) const {
    Bytes given;
    if (text.empty()) return available_memory(recipe);
    if (!from_text(text, given)) {
      fail(Code::kBadValue, "--assume-memory", "must be", expectation(text, given).wanted, ", not",
           text);
    }
    return static_cast<double>(given.value);
  }
};

}  // namespace troupe
