// troupe convert: other trainers' settings as a recipe.
#include <iostream>
#include <map>
#include <memory>

#include "apps/verbs.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/recipe/foreign/convert_recipe.h"
#include "troupe/train/recipe/problems.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

struct ConvertOptions {
  std::string file, from = "auto", out;
  std::vector<std::string> variables;  // "NAME=VALUE"
  bool force = false, quiet = false;
};

void tell(std::string_view what, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  std::cerr << what << " (" << lines.size() << ")\n";
  for (const std::string& line : lines) std::cerr << "  " << line << '\n';
}

std::map<std::string, std::string> variables_of(const ConvertOptions& options) {
  std::map<std::string, std::string> out;
  for (const std::string& text : options.variables) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail(Code::kBadValue, "--variable", "must be NAME=VALUE, not", text);
    }
    out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return out;
}

// What `check` would say of the layout.
void try_layout(Conversion& out) {
  if (!out.checked) return;
  const Sources none;
  Problems problems(none);
  problems.gather("", [&] {
    const int64_t ranks = least_ranks(out.checked->parallel);
    settled(out.checked->parallel, needs_of(*out.checked, ranks, ranks));
  });
  add_faults(out, problems.lines());
}

void print_check(const Conversion& out) {
  if (!out.whole) {
    std::cerr << "not checked: a layer's settings are no run\n";
  } else if (!out.refused.empty() || !out.faults.empty()) {
    std::cerr << "not checked: what is not supported, or at fault, is not in the recipe\n";
  } else if (!out.missing.empty()) {
    std::cerr << "checked, but for what is to be filled in (" << out.missing.size() << ")\n";
  } else {
    std::cerr
        << "checked: `troupe check` finds no fault in its settings; data are looked at there\n";
  }
}

void convert(const ConvertOptions& options, Call& call) {
  ForeignKind kind = ForeignKind::kAuto;
  if (!from_text(options.from, kind)) {
    const Expectation wanted = expectation(options.from, kind);
    fail(Code::kBadValue, "--from", "must be", wanted.wanted, ", not", options.from);
  }
  constexpr int64_t kLongest = int64_t{4} << 20;
  const std::string text = read_file(options.file, Code::kNoRecipe, kLongest);
  Conversion out = convert_recipe(text, options.file, kind, variables_of(options));
  try_layout(out);
  if (!options.quiet) {
    tell("mapped", out.mapped);
    tell("ignored: no result depends on it", out.ignored);
  }
  tell("to look at", out.notes);
  tell("not supported yet: the recipe does without", out.deferred);
  tell("to be filled in", out.missing);
  tell("not supported", out.refused);
  tell("`check` finds", out.faults);
  if (!out.refused.empty() && !options.force) {
    std::cerr << "No recipe is written: what is not supported would be lost. Take it out, or "
                 "--force.\n";
    call.code = static_cast<int>(ExitClass::kUsage);
    return;
  }
  if (!out.faults.empty() && !options.force) {
    std::cerr << "No recipe is written: it would not pass `troupe check`. Change the settings that "
                 "it names, or --force.\n";
    call.code = static_cast<int>(ExitClass::kUsage);
    return;
  }
  const std::string recipe = recipe_file(out);
  if (options.out.empty()) {
    std::cout << recipe;
  } else {
    Fs fs;
    write_output(fs, options.out, recipe);
  }
  print_check(out);
}

}  // namespace

void add_convert(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("convert", "converts other trainers' settings to a recipe");
  CLI::App* recipe = verb->add_subcommand("recipe",
                                          "from a Megatron-LM script or YAML, LLM-Foundry YAML, "
                                          "torchtitan TOML or MegaBlocks Arguments");
  const auto options = std::make_shared<ConvertOptions>();
  recipe->add_option("file", options->file, "script, YAML, TOML or Python file")->required();
  recipe->add_option("-o,--out", options->out, "output file; default, and -: standard output");
  recipe->add_option("--from", options->from, "auto, megatron, foundry, torchtitan or megablocks");
  recipe->add_option(
      "--variable", options->variables,
      "NAME=VALUE: variable of the script's environment; 1=VALUE: its first argument");
  recipe->add_flag("--force", options->force, "write what can be converted, the rest as comments");
  recipe->add_flag("--quiet", options->quiet, "do not list mapped and ignored settings");
  recipe->footer("Example: troupe convert recipe pretrain.sh -o run.yaml && troupe check run.yaml");
  recipe->callback([options, &call] { convert(*options, call); });
  verb->require_subcommand(1);
  verb->footer("Example: troupe convert recipe pretrain.sh -o run.yaml");
}

}  // namespace troupe
