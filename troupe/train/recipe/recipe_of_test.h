// Recipes for the tests of forecasts and layouts.
#pragma once

#include <string>

#include "troupe/core/config/config.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

inline constexpr char kLargeBatch[] =
    "data: {sequence: 1024}\ntrain: {global_batch: 64, micro_batch: 1, steps: 10}\n"
    "checkpoint: {dir: run}\n";

// `more`, on top of a base.
inline Recipe recipe_of(const std::string& more, const std::string& base = kLargeBatch) {
  Recipe r;
  read_config(parse_yaml(base, "base"), r);
  read_config(parse_yaml(more, "more"), r);
  return r;
}

}  // namespace troupe
