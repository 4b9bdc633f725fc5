// troupe convert: other trainers' settings as a recipe.
#include <algorithm>
#include <cstddef>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/verbs.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/recipe/foreign/convert_recipe.h"
#include "troupe/train/recipe/foreign/shell_words.h"
#include "troupe/train/recipe/problems.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

constexpr int kExitUnfilled = 8;  // beside ExitClass: the recipe is to be filled in

struct ConvertOptions {
  std::string file, from = "auto", out;
  std::vector<std::string> variables;  // "NAME=VALUE"
  bool force = false, quiet = false, explain = false;
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

// "theirs -> ours" as two columns, "theirs  ours".
void print_table(const std::vector<std::string>& mapped) {
  constexpr std::string_view kArrow = " -> ";
  constexpr size_t kWidest = 48;
  std::vector<std::pair<std::string, std::string>> rows = {{"theirs", "ours"}};
  for (const std::string& line : mapped) {
    const size_t arrow = line.rfind(kArrow);
    rows.emplace_back(line.substr(0, arrow), line.substr(arrow + kArrow.size()));
  }
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, std::min(row.first.size(), kWidest));
  for (const auto& [theirs, ours] : rows) {
    const size_t blanks = width > theirs.size() ? width - theirs.size() : 0;
    std::cerr << theirs << std::string(blanks + 2, ' ') << ours << '\n';
  }
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

std::string read_script(const std::string& file) {
  constexpr int64_t kLongest = int64_t{4} << 20;
  return read_file(file, Code::kNoRecipe, kLongest);
}

void convert(const ConvertOptions& options, Call& call) {
  ForeignKind kind = ForeignKind::kAuto;
  if (!from_text(options.from, kind)) {
    const Expectation wanted = expectation(options.from, kind);
    fail(Code::kBadValue, "--from", "must be", wanted.wanted, ", not", options.from);
  }
  const std::string text = read_script(options.file);
  Conversion out = convert_recipe(text, options.file, kind, variables_of(options));
  try_layout(out);
  if (options.explain) print_table(out.mapped);
  if (!options.quiet && !options.explain) {
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
  if (!out.missing.empty()) call.code = kExitUnfilled;
}

// The words of a script as one line of JSON, for a program that reads them.
void print_words(const ConvertOptions& options) {
  const std::string text = read_script(options.file);
  const ShellArguments read = shell_arguments(text, variables_of(options), options.file);
  std::cout << "{\"program\": " << to_text(read.program) << ", \"script\": " << to_text(read.script)
            << ", \"words\": [";
  for (size_t i = 0; i < read.words.size(); ++i) {
    const ShellWord& word = read.words[i];
    std::cout << (i == 0 ? "[" : ", [") << to_text(word.text) << ", " << word.line << ']';
  }
  std::cout << "], \"notes\": [";
  for (size_t i = 0; i < read.notes.size(); ++i) {
    std::cout << (i == 0 ? "" : ", ") << to_text(read.notes[i]);
  }
  std::cout << "]}\n";
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
  recipe->add_flag("--explain", options->explain,
                   "a table of every value that was taken: theirs, ours");
  recipe->footer("Example: troupe convert recipe pretrain.sh -o run.yaml && troupe check run.yaml");
  recipe->callback([options, &call] { convert(*options, call); });
  CLI::App* words = verb->add_subcommand(
      "words", "prints the words that a script passes to its program, as JSON");
  words->add_option("file", options->file, "script; no part of it is run")->required();
  words->add_option(
      "--variable", options->variables,
      "NAME=VALUE: variable of the script's environment; 1=VALUE: its first argument");
  words->footer("Example: troupe convert words pretrain.sh --variable 1=runs/mine");
  words->callback([options] { print_words(*options); });
  verb->require_subcommand(1);
  verb->footer("Example: troupe convert recipe pretrain.sh -o run.yaml");
}

}  // namespace troupe
