// troupe config: recipes as they are understood. print: every value, with where it was given;
// explain: one field; keys: all fields; diff: two recipes; schema: for editors.
#include "troupe/core/config/config.h"

#include <iostream>
#include <map>
#include <memory>

#include "apps/recipe_options.h"
#include "apps/verbs.h"
#include "troupe/train/recipe/key_help.h"

namespace troupe {
namespace {

void print(const RecipeOptions& options) {
  Sources sources;
  const Recipe recipe = load_recipe(options.path, options.sets, sources);
  print_config(std::cout, recipe, sources);
}

struct DiffOptions {
  std::string first, second;
};

void diff(const DiffOptions& options, Call& call) {
  Sources first_sources, second_sources;
  const Recipe first = load_recipe(options.first, {}, first_sources);
  const Recipe second = load_recipe(options.second, {}, second_sources);
  std::map<std::string, std::string> other;
  for (auto& [path, value] : flatten(second)) other[path] = value;
  const auto line = [&](const std::string& path, const std::string& a, const std::string& b) {
    std::cout << path << ": " << a << " -> " << b << '\n';
    call.code = 1;
  };
  for (const auto& [path, value] : flatten(first)) {
    const auto there = other.find(path);
    if (there == other.end()) {
      line(path, value, "none");
    } else {
      if (there->second != value) line(path, value, there->second);
      other.erase(there);
    }
  }
  for (const auto& [path, value] : other) line(path, "none", value);
  if (call.code == 0) std::cout << "the same\n";
}

void add_print(CLI::App& verb) {
  CLI::App* print_verb =
      verb.add_subcommand("print", "prints a recipe with every value and its source");
  const auto options = std::make_shared<RecipeOptions>();
  options->add_to(*print_verb);
  print_verb->footer("Example: troupe config print run.yaml --set train.steps=10");
  print_verb->callback([options] { print(*options); });
}

void add_config_diff(CLI::App& verb, Call& call) {
  CLI::App* diff_verb = verb.add_subcommand("diff", "shows the values in which two recipes differ");
  const auto options = std::make_shared<DiffOptions>();
  diff_verb->add_option("first", options->first, "a recipe")->required();
  diff_verb->add_option("second", options->second, "another recipe")->required();
  diff_verb->footer(
      "Example: troupe config diff runs/a/recipe.yaml runs/b/recipe.yaml\n"
      "Exit: 0 if they are equal, 1 if not.");
  diff_verb->callback([options, &call] { diff(*options, call); });
}

}  // namespace

void add_config(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("config", "prints, explains and compares recipes");
  verb->require_subcommand(1);
  add_print(*verb);
  CLI::App* explain_verb =
      verb->add_subcommand("explain", "explains a key: meaning, type, default");
  const auto key = std::make_shared<std::string>();
  explain_verb->add_option("key", *key, "path, name or part of the name of a key or section")
      ->required();
  explain_verb->footer("Example: troupe config explain model.moe.top_k");
  explain_verb->callback([key] { std::cout << explain_key(*key); });
  add_config_diff(*verb, call);
  CLI::App* keys = verb->add_subcommand("keys", "prints all keys of a recipe as Markdown tables");
  keys->footer("Example: troupe config keys > keys.md");
  keys->callback([] { write_recipe_keys(std::cout); });
  CLI::App* schema = verb->add_subcommand("schema", "prints a JSON schema of recipes, for editors");
  schema->footer("Example: troupe config schema > recipe.schema.json");
  schema->callback([] { write_recipe_schema(std::cout); });
  verb->footer("Example: troupe config print run.yaml");
}

}  // namespace troupe
