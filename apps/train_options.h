// The command line of `troupe train`, which `troupe launch` reads too before it starts any rank.
#pragma once

#include "apps/recipe_options.h"

namespace troupe {

struct TrainOptions {
  RecipeOptions recipe;
  bool print = false, force = false, quiet = false;

  void add_to(CLI::App& verb) {
    recipe.add_to(verb);
    verb.add_flag("--print-config", print, "print the resolved recipe and stop");
    verb.add_flag("--force", force,
                  "resume although model, data or seed differ from the checkpoint's");
    verb.add_flag("--quiet", quiet, "write to the run folder alone");
  }
};

}  // namespace troupe
