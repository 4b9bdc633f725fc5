// What the tests of conversions share.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/train/recipe/foreign/convert_recipe.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Without the comments.
inline std::string plain(const std::string& recipe) {
  std::istringstream in(recipe);
  std::string out;
  for (std::string line; std::getline(in, line);) out += line.substr(0, line.find("  # ")) + '\n';
  return out;
}

inline Recipe read_back(const Conversion& conversion) {
  Recipe recipe;
  read_config(parse_yaml(conversion.recipe, "converted.yaml"), recipe);
  return recipe;
}

inline bool any(const std::vector<std::string>& lines, std::string_view text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

inline Conversion megatron(const std::string& text) {
  return convert_recipe(text, "run.sh", ForeignKind::kMegatron);
}

// A list of arguments, with the rest that a run needs.
inline std::string arguments(const std::string& more) {
  return "--num-layers 4 --hidden-size 96 --num-attention-heads 4 --seq-length 64 --vocab-size 512 "
         "--micro-batch-size 2 --global-batch-size 4 --train-iters 100 --lr 1e-3 --mock-data "
         "--save run " +
         more;
}

}  // namespace troupe
