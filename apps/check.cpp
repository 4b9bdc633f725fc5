// troupe check: all that is wrong with a recipe, and what it would do. No device is used.
#include <iostream>
#include <memory>
#include <string>

#include "apps/memory_option.h"
#include "apps/recipe_options.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/nn/config/costs.h"
#include "troupe/plan/machine.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/machine/doctor.h"
#include "troupe/train/observe/step_line.h"
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
};

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
// all at once.
void check_layout(const Recipe& recipe, int64_t ranks) {
  const ParallelConfig& parallel = recipe.parallel;
  const int64_t least = least_ranks(parallel), world = ranks > 0 ? ranks : least;
  const ParallelConfig laid = settled(parallel, needs_of(recipe, world, world));
  if (world == 1) return;
  std::cout << "ranks  ";
  if (ranks == 0) std::cout << (parallel.data > 0 ? "" : "a multiple of ");
  std::cout << world << ": tensor " << laid.tensor << " x context " << laid.context
            << " x pipeline " << laid.pipeline << " x data " << replicas_of(laid, world)
            << ", experts over " << laid.expert * laid.expert_tensor << '\n';
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

void check(const CheckOptions& given, Call& call) {
  const RecipeOptions& options = given.recipe;
  const MemoryOption& memory = given.memory;
  Sources sources;
  Recipe recipe = load_recipe(options.path, options.sets, sources);
  validate(recipe, sources);
  Problems faults(sources);
  faults.gather("", [&] { check_layout(recipe, given.ranks); });
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
  const std::string no_code = no_code_line(recipe.run.device);
  if (!no_code.empty()) {
    std::cerr << options.path << ": " << warning_text(Code::kNoDevice) << ' ' << no_code << '\n';
  }
  const double available = memory.bytes(recipe);
  const ResolvedRun run = resolve_alone(recipe, available);
  const RunPlan& plan = run.plan;
  recipe.train.micro_batch = plan.micro_batch;
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

}  // namespace

void add_check(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("check", "lists all errors of a recipe");
  const auto options = std::make_shared<CheckOptions>();
  options->recipe.add_to(*verb);
  options->memory.add_to(*verb);
  verb->add_option("--ranks", options->ranks,
                   "ranks that the layout must fit and a machine must bear; default: the fewest")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->footer(
      "Example: troupe check recipes/quickstart.yaml\n"
      "         troupe check recipes/mixtral_8x7b.yaml --ranks 16 --set parallel.tensor=4\n"
      "Exit: 2 for the recipe, 3 for the data, 7 for too little memory.");
  verb->callback([options, &call] { check(*options, call); });
}

}  // namespace troupe
