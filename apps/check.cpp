// troupe check: all that is wrong with a recipe, and what it would do. No device is used.
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "apps/memory_option.h"
#include "apps/print.h"
#include "apps/recipe_options.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/text/one_line.h"
#include "troupe/nn/config/costs.h"
#include "troupe/plan/machine.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/forecast/prove_layout.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/machine/doctor.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/optim/optimizer.h"
#include "troupe/train/recipe/load_recipe.h"
#include "troupe/train/recipe/problems.h"
#include "troupe/train/run/open_data.h"
#include "troupe/train/run/open_teacher.h"
#include "troupe/train/run/trained_model.h"

namespace troupe {
namespace {

struct CheckOptions {
  RecipeOptions recipe;
  MemoryOption memory;
  int64_t ranks = 0;
  bool json = false;
};

// What --json prints. A recipe with faults has nothing but them.
struct CheckReport {
  struct Source {
    std::string name;
    int64_t tokens = 0;
    double epochs = 0;
    static void visit(auto& s, auto&& f) {
      f("name", s.name);
      f("tokens", s.tokens);
      f("epochs", s.epochs);
    }
  };
  bool ok = false;
  std::vector<std::string> faults = {};    // a line each, with place and code
  std::vector<std::string> warnings = {};  // of memory, disk and what the ranks need
  int64_t params = 0, active_params = 0, batch = 0, micro_batch = 0, steps = 0, tokens = 0;
  std::vector<Source> data = {};
  double checkpoint = 0;             // bytes
  double memory = 0, available = 0;  // bytes; available 0: unknown
  static void visit(auto& r, auto&& f) {
    f("ok", r.ok);
    f("faults", r.faults);
    f("warnings", r.warnings);
    f("params", r.params);
    f("active_params", r.active_params);
    f("batch", r.batch);
    f("micro_batch", r.micro_batch);
    f("steps", r.steps);
    f("tokens", r.tokens);
    f("data", r.data);
    f("checkpoint", r.checkpoint);
    f("memory", r.memory);
    f("available", r.available);
  }
};

std::vector<std::string> warnings_of(const Recipe& recipe, int64_t ranks, double available) {
  std::vector<std::string> out;
  const DiskVerdict disk = judge_disk(recipe, runs_on_gpu(recipe));
  if (!disk.fits) out.push_back(warning_text(Code::kNoSpace) + ' ' + disk.line);
  if (available > 0) {
    const MemoryVerdict memory = judge_memory(recipe, runs_on_gpu(recipe), available);
    if (memory.warns) out.push_back(memory.line);
  }
  if (ranks < 2) return out;
  for (const Finding& found : examine_start(ranks)) {
    if (found.verdict != Finding::kOk) out.push_back(line_of(found));
  }
  return out;
}

CheckReport report_of(const Recipe& recipe, const RunPlan& plan, const OpenedData& opened,
                      double available) {
  const ModelCosts costs = costs_of(recipe.model);
  CheckReport out{.params = costs.params(),
                  .active_params = costs.active_params(),
                  .batch = plan.batch,
                  .micro_batch = plan.micro_batch,
                  .steps = plan.run.steps,
                  .tokens = plan.run.tokens,
                  .checkpoint = checkpoint_bytes(recipe, runs_on_gpu(recipe)),
                  .memory = forecast_memory(recipe, runs_on_gpu(recipe)).total(),
                  .available = available};
  for (const SourceUse& use : opened.data.train->uses(plan.run.samples)) {
    out.data.push_back({use.name, use.tokens, use.epochs()});
  }
  out.ok = available <= 0 || judge_memory(recipe, runs_on_gpu(recipe), available).fits;
  return out;
}

// By the machine's file where the recipe names one: nothing is measured here.
void print_duration(const Recipe& recipe, const RunPlan& plan) {
  if (recipe.run.machine.empty()) {
    std::cout << "time   `troupe bench` measures a step\n";
    return;
  }
  const Machine machine = load_machine(recipe.run.machine);
  LayoutForecast one;
  try {
    one = forecast_layout(recipe, 1, machine, runs_on_gpu(recipe));
  } catch (const Error&) {  // a layout of several ranks
    std::cout << "time   `troupe plan --ranks` forecasts it: this layout is not of one rank\n";
    return;
  }
  std::cout << "time   " << short_time(static_cast<double>(plan.run.tokens) / one.tokens_per_second)
            << ", a step " << seconds_text(one.step_seconds) << ", on one rank by "
            << recipe.run.machine << '\n';
}

// What does not fit on `ranks`, or where none are given on as many as the recipe's own axes need,
// all at once; and whether the ranks' step ends, whatever their speeds.
void check_layout(const Recipe& recipe, int64_t ranks, bool quiet) {
  const ParallelConfig& parallel = recipe.parallel;
  const int64_t least = least_ranks(parallel), world = ranks > 0 ? ranks : least;
  const ParallelConfig laid = settled(parallel, needs_of(recipe, world, world));
  if (world == 1) return;
  const RunPlan plan = plan_of(recipe);
  const LayoutProof proof = prove_layout(recipe, laid, plan.batch, plan.micro_batch, world);
  if (quiet) return;
  std::cout << "ranks  ";
  if (ranks == 0) std::cout << (parallel.data > 0 ? "" : "a multiple of ");
  std::cout << world << ": tensor " << laid.tensor << " x context " << laid.context
            << " x pipeline " << laid.pipeline << " x data " << replicas_of(laid, world)
            << ", experts over " << laid.expert * laid.expert_tensor << '\n'
            << "proof  " << to_text(proof) << '\n';
}

// What the ranks themselves need, whatever the model: warnings on stderr.
void print_start(const std::string& recipe, int64_t ranks) {
  if (ranks < 2) return;
  for (const Finding& found : examine_start(ranks)) {
    if (found.verdict == Finding::kOk) {
      std::cout << "start  " << found.what << ": " << found.found << '\n';
    } else {
      std::cerr << recipe << ": " << line_of(found) << '\n';
    }
  }
}

void check_folder(const std::string& folder) {
  const std::string why = why_not_writable(folder);
  if (!why.empty()) fail(Code::kBadRunFolder, "checkpoint.dir " + folder, why);
}

// As a start does that finds nothing to resume from.
void check_init(const CheckpointConfig& config) {
  if (config.init_from.empty()) return;
  const bool begins = config.resume.kind == Resume::kNever || steps_in(config.dir).empty();
  if (begins) init_point(config.init_from);
}

// What is allowed, and is hardly meant.
void warn_of_oddities(const std::string& path, const Recipe& recipe, const Data& data) {
  const auto warn = [&](Code code, const std::string& what) {
    std::cerr << path << ": " << warning_text(code) << ' ' << what << '\n';
  };
  const std::string device = no_code_line(recipe.run.device);
  if (!device.empty()) warn(Code::kNoDevice, device);
  const double lr = base_of(recipe.train.optimizer).lr;
  const std::string kind(recipe.train.optimizer.kind());
  const double most = kind == "sgd" ? 100 : 1;  // the others move a weight by about lr a step
  if (lr > most) {
    warn(Code::kBadValue, "train.optimizer.lr " + to_text(lr) + " is far above what " + kind +
                              " trains with: weights are replaced, not adjusted");
  }
  constexpr int64_t kFewTargets = 4096;
  for (const auto& [name, set] : data.valid) {
    const int64_t targets = set->samples_per_epoch() * recipe.data.sequence;
    if (targets >= kFewTargets) continue;
    warn(Code::kTooFewTokens, "data.valid " + name + " has about " + std::to_string(targets) +
                                  " tokens: losses of so few say little; " +
                                  std::to_string(kFewTargets) + " are the least to compare by");
  }
}

void check(const CheckOptions& given, Call& call) {
  const RecipeOptions& options = given.recipe;
  const MemoryOption& memory = given.memory;
  Sources sources;
  Recipe recipe = load_valid_recipe(options.path, options.sets, sources);
  Problems faults(sources);
  faults.gather("", [&] { check_layout(recipe, given.ranks, given.json); });
  faults.gather("", [&] {
    if (!recipe.run.machine.empty()) load_machine(recipe.run.machine);  // what is wrong with it
  });
  faults.gather("", [&] { check_folder(recipe.checkpoint.dir); });
  faults.gather("train.teacher", [&] {
    if (recipe.train.teacher) teacher_folder(recipe);
  });
  faults.gather("checkpoint.init_from", [&] { check_init(recipe.checkpoint); });
  OpenedData opened;
  const Log log({stderr_sink()}, Level::kWarning);
  faults.gather("", [&] { opened = open_data(resolve_alone(recipe), {log, log}); });
  faults.throw_if_any();
  warn_of_oddities(options.path, recipe, opened.data);
  const double available = memory.bytes(recipe);
  const ResolvedRun run = resolve_alone(recipe, available);
  const RunPlan& plan = run.plan;
  recipe.train.micro_batch = plan.micro_batch;
  if (given.json) {
    CheckReport report = report_of(recipe, plan, opened, available);
    report.warnings = warnings_of(recipe, given.ranks, available);
    print_json(report);
    if (!report.ok) call.code = static_cast<int>(ExitClass::kResource);
    return;
  }
  const ModelCosts costs = costs_of(recipe.model);
  std::cout << "model  " << costs.params() << " parameters, " << costs.active_params()
            << " active, " << short_number(costs.flops_per_token(recipe.data.sequence))
            << " FLOPs a token\n"
            << "batch  " << plan.batch << " sequences of " << recipe.data.sequence << ", "
            << plan.micro_batch << " at a time (" << run.micro_why << ")\n"
            << "run    " << plan.run.steps << " steps, " << plan.run.tokens << " tokens\n";
  for (const SourceUse& use : opened.data.train->uses(plan.run.samples)) {
    std::cout << "data   " << use.name << ": " << use.tokens << " tokens, " << use.epochs()
              << " epochs in this run\n";
  }
  const DiskVerdict disk = judge_disk(recipe, runs_on_gpu(recipe));
  (disk.fits ? std::cout : std::cerr)
      << (disk.fits ? "disk   " : options.path + ": " + warning_text(Code::kNoSpace) + ' ')
      << disk.line << '\n';
  print_duration(recipe, plan);
  print_start(options.path, given.ranks);
  if (available > 0) {
    const MemoryVerdict verdict = judge_memory(recipe, runs_on_gpu(recipe), available);
    (verdict.warns ? std::cerr : std::cout)
        << (verdict.warns ? options.path + ": " : "") << verdict.line << '\n';
    if (!verdict.fits) {
      call.code = static_cast<int>(ExitClass::kResource);
      return;
    }
  }
  std::cout << "ok\n";
}

void check_as_json(const CheckOptions& options, Call& call) {
  try {
    check(options, call);
  } catch (const Error& error) {
    CheckReport report;
    std::istringstream lines(without_secrets(error.what()));
    for (std::string line; std::getline(lines, line);) report.faults.push_back(one_line(line));
    print_json(report);
    call.code = static_cast<int>(error.exit_class());
  }
}

}  // namespace

void add_check(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("check", "lists all errors of a recipe");
  const auto options = std::make_shared<CheckOptions>();
  options->recipe.add_to(*verb);
  options->memory.add_to(*verb);
  verb->add_option("--ranks", options->ranks,
                   "ranks that the layout must fit and a machine must bear; default: the fewest")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_flag("--json", options->json, "print one line of JSON, also of what is wrong");
  verb->footer(
      "Example: troupe check recipes/quickstart.yaml\n"
      "         troupe check recipes/mixtral_8x7b.yaml --ranks 16 --set parallel.tensor=4\n"
      "Exit: 2 for the recipe, 3 for the data, 7 for too little memory.");
  verb->callback(
      [options, &call] { options->json ? check_as_json(*options, call) : check(*options, call); });
}

}  // namespace troupe
