// troupe plan: the memory and the time that a run will take, on one rank or many. No device is
// used.
#include <cstdio>
#include <iostream>
#include <memory>

#include "apps/memory_option.h"
#include "apps/plan_layout.h"
#include "apps/print.h"
#include "apps/recipe_options.h"
#include "apps/verbs.h"
#include "troupe/core/config/json.h"
#include "troupe/nn/config/costs.h"
#include "troupe/plan/machine.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/model_memory.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

struct PlanOptions {
  RecipeOptions recipe;
  MemoryOption memory;
  LayoutOptions layout;
  double rate = 0;
};

struct PlanReport {
  int64_t params = 0, active_params = 0;
  double memory = 0;
  MemoryForecast parts;
  double step_flops = 0, step_seconds = 0, tokens_per_second = 0, run_seconds = 0;
  double checkpoint = 0;  // bytes
  double host = 0;        // bytes of masters and optimizer state in host memory
  double copies = 0;      // seconds of a step in which they come, at an assumed rate
  static void visit(auto& r, auto&& f) {
    f("params", r.params);
    f("active_params", r.active_params);
    f("memory", r.memory);
    f("parts", r.parts);
    f("step_flops", r.step_flops);
    f("step_seconds", r.step_seconds);
    f("tokens_per_second", r.tokens_per_second);
    f("run_seconds", r.run_seconds);
    f("checkpoint", r.checkpoint);
    f("host", r.host);
    f("copies", r.copies);
  }
};

void print_memory(const MemoryForecast& m, const Recipe& recipe, const RunPlan& plan) {
  const std::string rows = "micro batch " + std::to_string(plan.micro_batch) + " x " +
                           std::to_string(recipe.data.sequence) + " tokens";
  const auto line = [](const char* what, double bytes, const std::string& why) {
    print_text("  %-20s %9s   %s\n", what, in_gib(bytes).c_str(), why.c_str());
  };
  print_text("memory, GiB\n");
  line("weights", m.weights, "");
  const bool early = recipe.train.update == UpdatePlace::kInBackward;
  line("gradients", m.gradients,
       plan.micro_batch < plan.batch ? "f32"
       : early                       ? "of two layers at most"
                                     : "as backward makes them");
  const bool halves = recipe.train.precision != Precision::kFp16;
  const bool wide = value_width(recipe, runs_on_gpu(recipe)) >= 4;
  line("master weights", m.masters,
       wide         ? "the weights themselves"
       : m.host > 0 ? "in host memory"
       : halves     ? "the lower halves of f32"
                    : "f32");
  line("optimizer", m.moments, std::string(recipe.train.optimizer.kind()));
  line("kept for backward", m.activations, rows);
  line("working space", m.workspace, "");
  if (m.overlap > 0) line("less: once for both", -m.overlap, "gradients come as activations go");
  if (m.update > 0)
    line("update", m.update, early ? "beside backward" : "beyond what backward takes");
  line("runtime", m.runtime, "libraries, the device");
  line("in all", m.total(), "");
}

// "6.92B", "1.81T", "33.1P"
std::string large_number(double value) {
  constexpr const char* kUnits[] = {"", "K", "M", "B", "T", "P", "E", "Z", "Y"};
  int unit = 0;
  while (value >= 1000 && unit < 8) value /= 1000, ++unit;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f%s" : "%.2f%s", value, kUnits[unit]);
  return text;
}

void print_time(const TimeForecast& time, double rate) {
  print_text("time at %g TFLOP/s\n  a step %s, %s tokens/s, the run %s\n", rate,
             seconds_text(time.step_seconds).c_str(), short_number(time.tokens_per_second).c_str(),
             short_time(time.run_seconds).c_str());
}

PlanReport report_of(const Recipe& recipe, const RunPlan& plan, const MemoryForecast& memory) {
  const ModelCosts costs = costs_of(recipe.model);
  return {.params = costs.params(),
          .active_params = costs.active_params(),
          .memory = memory.total(),
          .parts = memory,
          .step_flops = forecast_time(recipe, plan, 1).step_flops,
          .checkpoint = checkpoint_bytes(recipe, runs_on_gpu(recipe)),
          .host = memory.host,
          .copies = memory.host / kAssumedHostLink};
}

void print_all(const PlanReport& report, const Recipe& recipe, const RunPlan& plan, double rate,
               double available) {
  const auto count = [](auto n) { return large_number(static_cast<double>(n)); };
  print_text("model %s parameters, %s active\nstep %s tokens, %s FLOPs; %s steps\n",
             count(report.params).c_str(), count(report.active_params).c_str(),
             count(plan.batch * recipe.data.sequence).c_str(), count(report.step_flops).c_str(),
             std::to_string(plan.run.steps).c_str());
  print_memory(report.parts, recipe, plan);
  if (available > 0) {
    print_text("%s\n", judge_memory(recipe, runs_on_gpu(recipe), available).line.c_str());
  }
  print_host_state(report.host, report.copies, kAssumedHostLink, /*measured=*/false);
  print_text("disk: %s\n", judge_disk(recipe, runs_on_gpu(recipe)).line.c_str());
  if (rate > 0) {
    print_time(forecast_time(recipe, plan, rate * 1e12), rate);
  } else {
    print_text("time: give --rate in TFLOP/s; `troupe bench` measures it\n");
  }
}

void plan(const PlanOptions& options, Call& call) {
  Sources sources;
  Recipe recipe = load_recipe(options.recipe.path, options.recipe.sets, sources);
  validate(recipe, sources);
  if (options.rate < 0) fail(Code::kBadValue, "--rate", "must be positive, not", options.rate);
  if (options.layout.ranks > 0) {
    const double given = options.memory.text.empty() ? 0 : options.memory.bytes(recipe);
    if (!plan_layout(options.layout, recipe, given)) {
      call.code = static_cast<int>(ExitClass::kResource);
    }
    return;
  }
  const double available = options.memory.bytes(recipe);
  const ResolvedRun run = resolve_alone(recipe, available);
  recipe.train.micro_batch = run.plan.micro_batch;
  PlanReport report = report_of(recipe, run.plan, forecast_memory(recipe, runs_on_gpu(recipe)));
  if (options.rate > 0) {
    const TimeForecast time = forecast_time(recipe, run.plan, options.rate * 1e12);
    report.step_seconds = time.step_seconds;
    report.tokens_per_second = time.tokens_per_second;
    report.run_seconds = time.run_seconds;
  }
  if (options.layout.json) {
    write_json(std::cout, report);
    std::cout << '\n';
  } else {
    print_all(report, recipe, run.plan, options.rate, available);
  }
  if (available > 0 && report.memory > available) {
    call.code = static_cast<int>(ExitClass::kResource);
  }
}

}  // namespace

void add_plan(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("plan", "forecasts memory and time of a run");
  const auto options = std::make_shared<PlanOptions>();
  options->recipe.add_to(*verb);
  options->memory.add_to(*verb);
  verb->add_option("--rate", options->rate, "achieved TFLOP/s of the device, for the time");
  options->layout.add_to(*verb);
  verb->add_flag("--json", options->layout.json, "print one line of JSON");
  verb->footer(
      "Example: troupe plan run.yaml --set run.device=cuda --assume-memory 80GiB --rate 400\n"
      "         troupe plan run.yaml --ranks 64 --machine machines/assumed-h100.yaml --scaling\n"
      "Returns 7 where the run does not fit.");
  verb->callback([options, &call] { plan(*options, call); });
}

}  // namespace troupe
