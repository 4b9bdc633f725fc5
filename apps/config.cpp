// troupe config: the resolved recipe, with where each value was given. It reads back as it is.
#include "troupe/core/config.h"

#include <iostream>
#include <memory>

#include "apps/recipe_options.h"
#include "apps/verbs.h"

namespace troupe {

void add_config(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("config", "prints a recipe with every value");
  const auto options = std::make_shared<RecipeOptions>();
  options->add_to(*verb);
  verb->footer("Example: troupe config recipes/quickstart.yaml --set train.steps=10");
  verb->callback([options] {
    Sources sources;
    const Recipe recipe = load_recipe(options->path, options->sets, sources);
    print_config(std::cout, recipe, sources);
  });
}

}  // namespace troupe
