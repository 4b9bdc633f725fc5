// What the sweep of a folder is: FOLDER/sweep.json, by which the same command continues it and
// another one is refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/sweep_grid.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct SweepFacts {
  std::vector<SweepAxis> grid = {};
  int64_t sample = 0;                    // 0: all combinations
  uint64_t seed = 0;                     // 0: no sample
  std::string recipe_hash = "";          // of `recipe`
  std::vector<std::string> recipe = {};  // "model.width=64": of the first run, without its folder
  static void visit(auto& s, auto&& f) {
    f("grid", s.grid);
    f("sample", s.sample);
    f("seed", s.seed);
    f("recipe_hash", s.recipe_hash);
    f("recipe", s.recipe);
  }
};

// Fills in `recipe` and its hash, without secrets.
void set_recipe(SweepFacts& facts, const Recipe& first);

// Writes the facts where the folder `out` has none. Throws E2008 with all that differs where it has
// another sweep, and where it is a run's, or has one of `runs` (their folders) without facts.
void claim_folder(Fs& fs, const std::string& out, const SweepFacts& facts,
                  const std::vector<std::string>& runs);

}  // namespace troupe
