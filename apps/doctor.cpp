// troupe doctor: what of this machine a run would stumble over, and which kernels a recipe gets.
#include "troupe/train/machine/doctor.h"

#include <iostream>
#include <memory>

#include "apps/print.h"
#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

struct DoctorOptions {
  std::string folder = ".", recipe;
  std::vector<std::string> sets;
  int64_t ranks = 0;
  bool json = false;
};

struct DoctorReport {
  struct Line {
    std::string verdict;  // "ok", "warn", "fail"
    std::string what, found, cure;
    static void visit(auto& l, auto&& f) {
      f("verdict", l.verdict);
      f("what", l.what);
      f("found", l.found);
      f("cure", l.cure);
    }
  };
  bool ok = true;  // no line says fail
  std::vector<Line> findings = {};
  static void visit(auto& r, auto&& f) {
    f("ok", r.ok);
    f("findings", r.findings);
  }
};

DoctorReport report_of(const std::vector<Finding>& findings) {
  constexpr const char* kVerdicts[] = {"ok", "warn", "fail"};
  DoctorReport out;
  for (const Finding& finding : findings) {
    out.findings.push_back({kVerdicts[finding.verdict], finding.what, finding.found, finding.cure});
    out.ok = out.ok && finding.verdict != Finding::kFail;
  }
  return out;
}

// As text each is printed once it is known: the machine's checks take seconds.
void print(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) std::cout << line_of(finding) << '\n';
}

void doctor(const DoctorOptions& options, Call& call) {
  std::vector<Finding> experts, all;
  if (!options.recipe.empty()) {  // what is wrong with it is said first
    Sources sources;
    const Recipe read = load_recipe(options.recipe, options.sets, sources);
    validate(read, sources);
    experts = examine_experts(read, first_gpu());
  }
  const auto add = [&](const std::vector<Finding>& findings) {
    if (!options.json) print(findings);
    all.insert(all.end(), findings.begin(), findings.end());
  };
  add(examine(options.folder));
  if (options.ranks > 0) add(examine_start(options.ranks));
  add(experts);
  const DoctorReport report = report_of(all);
  if (options.json) print_json(report);
  if (!report.ok) call.code = static_cast<int>(ExitClass::kResource);
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
  verb->add_flag("--json", options->json, "print one line of JSON");
  verb->footer(
      "Example: troupe doctor runs --recipe recipes/olmoe_one_gpu.yaml\n"
      "         troupe doctor --ranks 3072\n"
      "Exit: 7 if a line says fail.");
  verb->callback([options, &call] { doctor(*options, call); });
}

}  // namespace troupe
