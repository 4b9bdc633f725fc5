// RUN/recipe.yaml of an import: what a recipe that trains it says of it.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

#include "troupe/core/config/config.h"
#include "troupe/core/file/file.h"
#include "troupe/nn/config/config.h"

namespace troupe {

struct ImportedRecipe {
  struct Data {
    std::string tokenizer;
    int64_t sequence = 0;
    static void visit(auto& d, auto&& f) {
      f("tokenizer", d.tokenizer);
      f("sequence", d.sequence);
    }
  };
  ModelConfig model;
  Data data;
  static void visit(auto& r, auto&& f) {
    f("model", r.model);
    f("data", r.data);
  }
};

// `recipe`: an ImportedRecipe, or one that has more keys.
template <class Recipe>
void write_imported_recipe(Fs& fs, const std::string& run, const Recipe& recipe) {
  std::ostringstream text;
  text << "# What was imported. A recipe that trains it has this model, and\n"
       << "# checkpoint: {init_from: " << run << "/step-000000, cast: true}\n";
  print_config(text, recipe);
  publish_file(fs, run + "/recipe.yaml", text.str());
}

}  // namespace troupe
