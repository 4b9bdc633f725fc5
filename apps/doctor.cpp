// troupe doctor: what of this machine a run would stumble over, and which kernels a recipe gets.
#include "troupe/train/machine/doctor.h"

#include <iostream>
#include <memory>

#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

struct DoctorOptions {
  std::string folder = ".", recipe;
  std::vector<std::string> sets;
  int64_t ranks = 0;
};

void print(const std::vector<Finding>& findings, Call& call) {
  for (const Finding& finding : findings) {
    std::cout << line_of(finding) << '\n';
    if (finding.verdict == Finding::kFail) call.code = static_cast<int>(ExitClass::kResource);
  }
}

}  // namespace

void add_doctor(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("doctor", "checks this machine: ok, warn or fail");
  const auto options = std::make_shared<DoctorOptions>();
  verb->add_option("folder", options->folder, "folder for runs");
  CLI::Option* recipe =
      verb->add_option("--recipe", options->recipe,
                       "also says which kernels compute this recipe's experts, and why");
  verb->add_option("--set", options->sets, "path=value: one more line of the recipe")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->take_all()
      ->needs(recipe);
  verb->add_option("--ranks", options->ranks,
                   "also says what a start of so many ranks needs: open files, ports, memory")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->footer(
      "Example: troupe doctor runs --recipe recipes/olmoe_one_gpu.yaml\n"
      "         troupe doctor --ranks 3072\n"
      "Exit: 7 if a line says fail.");
  verb->callback([options, &call] {
    std::vector<Finding> experts;
    if (!options->recipe.empty()) {  // what is wrong with it is said first
      Sources sources;
      const Recipe read = load_recipe(options->recipe, options->sets, sources);
      validate(read, sources);
      experts = examine_experts(read, first_gpu());
    }
    print(examine(options->folder), call);
    if (options->ranks > 0) print(examine_start(options->ranks), call);
    print(experts, call);
  });
}

}  // namespace troupe
