// What every verb that takes a recipe has on its command line.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct RecipeOptions {
  std::string path;
  std::vector<std::string> sets;

  void add_to(CLI::App& verb) {
    verb.add_option("recipe", path, "the recipe, a YAML file")->required();
    verb.add_option("--set", sets, "path=value: one more line of the recipe; may be given often")
        ->type_name("PATH=VALUE")
        ->expected(1)
        ->take_all();
  }
};

}  // namespace troupe
