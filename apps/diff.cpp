// troupe diff: two checkpoints, two recipes, or the modules of two models, and where they differ.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "apps/models/compare_modules.h"
#include "apps/print.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/tensors/compare_tensors.h"
#include "troupe/core/config/config.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

constexpr int kDifferent = 1;  // as diff(1) and cmp(1): no class of an error

struct DiffVerb {
  std::string a, b;
  std::vector<std::string> only;
  bool all = false, json = false, weights = false, modules = false;
  double within = 1e-4;
};

struct Difference {  // --json of tensors
  TensorComparison tensors;
  std::vector<std::string> state;
  static void visit(auto& d, auto&& f) {
    TensorComparison::visit(d.tensors, f);
    f("state", d.state);
  }
};

void print_value(const TensorDifference& d) {
  std::cout << "  " << d.name << "  ";
  if (d.values.elements == 0 || d.what != "values") std::cout << d.what;
  if (d.values.different > 0) {
    std::cout << (d.what == "values" ? "" : "; ") << with_commas(d.values.different) << " of "
              << with_commas(d.values.elements) << " differ";
    if (d.values.max_abs) std::cout << ", max " << to_text(*d.values.max_abs);
    std::cout << ", first at " << to_text(d.values.first) << ": " << d.values.first_a << " and "
              << d.values.first_b;
  }
  std::cout << '\n';
}

void print_tensors(const Difference& d, bool all) {
  const TensorComparison& c = d.tensors;
  constexpr int64_t kFew = 20;
  const int64_t shown = all ? std::ssize(c.differences) : std::min(kFew, std::ssize(c.differences));
  for (int64_t i = 0; i < shown; ++i) print_value(c.differences[static_cast<size_t>(i)]);
  if (shown < std::ssize(c.differences)) {
    std::cout << "  and " << with_commas(std::ssize(c.differences) - shown) << " more (--all)\n";
  }
  for (const std::string& line : d.state) std::cout << "  state " << line << '\n';
  std::cout << with_commas(c.equal) << " of " << with_commas(c.tensors)
            << " tensors are equal bit for bit";
  if (c.different > 0) {
    std::cout << "; " << with_commas(c.different) << " of " << with_commas(c.elements)
              << " elements differ, by at most " << to_text(c.max_abs);
  }
  std::cout << '\n';
}

void diff_tensors(const DiffVerb& verb, Call& call) {
  const auto a = open_tensors(verb.a), b = open_tensors(verb.b);
  std::vector<std::string> only = verb.only;
  if (verb.weights) only.emplace_back("model.*");
  Difference found{.tensors = compare_tensors(*a, *b, only), .state = {}};
  // How long the steps took is no part of a run's state.
  if (a->manifest() != nullptr && b->manifest() != nullptr && only.empty()) {
    found.state =
        changes(a->manifest()->scalars, b->manifest()->scalars, {"seconds", "save_seconds"});
  }
  if (found.tensors.tensors == 0) fail(Code::kBadValue, "--only", "no tensor matches");
  verb.json ? print_json(found) : print_tensors(found, verb.all);
  const bool same = found.tensors.equal == found.tensors.tensors && found.state.empty();
  if (!same) call.code = kDifferent;
}

struct RecipeChange {
  std::string path, a, b;
  static void visit(auto& c, auto&& f) {
    f("path", c.path);
    f("a", c.a);
    f("b", c.b);
  }
};
struct RecipeChanges {
  std::vector<RecipeChange> changes;
  static void visit(auto& c, auto&& f) { f("changes", c.changes); }
};

std::map<std::string, std::string> values_of(const std::string& path) {
  Sources sources;
  const auto flat = flatten(load_recipe(path, {}, sources));
  return {flat.begin(), flat.end()};
}

void diff_recipes(const DiffVerb& verb, Call& call) {
  const auto a = values_of(verb.a), b = values_of(verb.b);
  std::map<std::string, std::string> all = a;
  all.insert(b.begin(), b.end());
  RecipeChanges out;
  for (const auto& [path, value] : all) {
    const auto in_a = a.find(path), in_b = b.find(path);
    const std::string of_a = in_a == a.end() ? "(not there)" : in_a->second;
    const std::string of_b = in_b == b.end() ? "(not there)" : in_b->second;
    if (of_a != of_b) out.changes.push_back({path, of_a, of_b});
  }
  if (verb.json) {
    print_json(out);
  } else {
    for (const RecipeChange& c : out.changes) {
      std::cout << "  " << c.path << ": " << c.a << " and " << c.b << '\n';
    }
    std::cout << out.changes.size() << " of " << all.size() << " values differ\n";
  }
  if (!out.changes.empty()) call.code = kDifferent;
}

void print_modules(const ModuleComparison& c, bool all) {
  size_t width = 6;
  for (const ModuleDifference& m : c.modules) width = std::max(width, m.name.size());
  const auto columns = static_cast<int>(width);
  print_text("%-*s  %-16s  %8s  %8s\n", columns, "module", "shape", "max abs", "relative");
  bool found = false;
  int64_t left = std::ssize(c.modules);
  for (const ModuleDifference& m : c.modules) {
    if (found && !all) break;
    --left;
    found = found || m.differs;
    print_text("%-*s  %-16s  %8.2g  %8.2g%s\n", columns, m.name.c_str(), to_text(m.shape).c_str(),
               m.max_abs, m.max_rel, m.differs ? "  differs" : "");
  }
  if (left > 0) print_text("and %lld modules behind it (--all)\n", static_cast<long long>(left));
  if (found) {
    print_text("%s is the first module whose output differs by more than %g of its largest value\n",
               c.first.c_str(), c.within);
  } else {
    print_text("the outputs of all %lld modules agree to %g of their largest values\n",
               static_cast<long long>(std::ssize(c.modules)), c.within);
  }
}

void diff_modules(const DiffVerb& verb, Call& call) {
  if (!(verb.within >= 0)) fail(Code::kBadValue, "--within", "must be at least 0");
  const ModuleComparison found = compare_modules(verb.a, verb.b, verb.within);
  verb.json ? print_json(found) : print_modules(found, verb.all);
  if (!found.first.empty()) call.code = kDifferent;
}

bool is_recipe(const std::string& path) {
  return path.ends_with(".yaml") || path.ends_with(".yml");
}

void diff(const DiffVerb& verb, Call& call) {
  if (is_recipe(verb.a) != is_recipe(verb.b)) {
    fail(Code::kBadValue, is_recipe(verb.a) ? verb.a : verb.b,
         "is a recipe and the other is not: compare two of the same kind");
  }
  if (!verb.modules) return is_recipe(verb.a) ? diff_recipes(verb, call) : diff_tensors(verb, call);
  if (is_recipe(verb.a)) fail(Code::kBadValue, "--modules", "compares models, not recipes");
  diff_modules(verb, call);
}

}  // namespace

void add_diff(CLI::App& app, Call& call) {
  CLI::App* verb =
      app.add_subcommand("diff", "compares two checkpoints, two recipes or two models' modules");
  const auto options = std::make_shared<DiffVerb>();
  verb->add_option("a", options->a,
                   "a checkpoint, a run (its newest step), a model folder, a .safetensors file,\n"
                   "or a recipe (.yaml)")
      ->required();
  verb->add_option("b", options->b, "another of the same kind")->required();
  CLI::Option* const only =
      verb->add_option("--only", options->only, "tensor names; a trailing * matches any rest");
  CLI::Option* const weights = verb->add_flag("--weights", options->weights,
                                              "compare model tensors only, no optimizer or state");
  CLI::Option* const modules =
      verb->add_flag(
              "--modules", options->modules,
              "compare what each module computes of the same tokens, in f32 on the CPU: of a\n"
              "run or model folder, and of another or of a .safetensors file that Python's\n"
              "troupe.record_modules wrote; needs 4 bytes per parameter")
          ->excludes(only)
          ->excludes(weights);
  verb->add_option(
          "--within", options->within,
          "--modules: largest difference that counts as none, as a part of the largest value\n"
          "of the module; default 1e-4")
      ->needs(modules);
  verb->add_flag("--all", options->all, "list every difference");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Example: troupe diff runs/a/step-000200 runs/b/step-000200\n"
      "         troupe diff --modules runs/olmoe outputs.safetensors\n"
      "Exit: 0 bitwise equal (of modules: within --within), 1 different, else the class of an\n"
      "error.");
  verb->callback([options, &call] { diff(*options, call); });
}

}  // namespace troupe
