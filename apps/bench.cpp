// troupe bench: the time of a recipe's steps here.
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>

#include "apps/recipe_options.h"
#include "apps/verbs.h"
#include "troupe/core/json.h"
#include "troupe/core/publish.h"
#include "troupe/train/bench_run.h"
#include "troupe/train/forecast.h"
#include "troupe/train/memory_use.h"

namespace troupe {
namespace {

struct BenchCommand {
  RecipeOptions recipe;
  BenchOptions bench;
  std::string out;
  bool json = false;
};

void print(const BenchReport& report) {
  std::printf("troupe %s (%s) on %s, %s, %lld threads\n", report.version.c_str(),
              report.commit.c_str(), report.device.c_str(), report.processor.c_str(),
              static_cast<long long>(report.threads));
  std::printf("step of %lld x %lld tokens, micro batch %lld; median of %lld after %lld\n",
              static_cast<long long>(report.batch), static_cast<long long>(report.sequence),
              static_cast<long long>(report.micro_batch), static_cast<long long>(report.steps),
              static_cast<long long>(report.warmup));
  for (const BenchTimes& t : report.times) {
    std::printf(
        "%-8s %.4f s (forward %.4f, backward %.4f, update %.4f), %.0f tokens/s, %.3f "
        "TFLOP/s, load %.2f\n",
        (t.routing == "forced" ? "FORCED" : t.routing).c_str(), t.step_s, t.forward_s, t.backward_s,
        t.update_s, t.tokens_s, t.tflops, t.max_over_mean);
  }
  std::printf("memory %s GiB at most, forecast %s\n",
              in_gib(static_cast<double>(report.peak_bytes)).c_str(),
              in_gib(static_cast<double>(report.forecast_bytes)).c_str());
}

void bench(const BenchCommand& options) {
  keep_freed_memory();  // as `train` does
  Sources sources;
  const Recipe recipe = load_recipe(options.recipe.path, options.recipe.sets, sources);
  validate(recipe, sources);
  const BenchReport report = bench_run(recipe, options.bench);
  std::ostringstream text;
  write_json(text, report);
  text << '\n';
  if (!options.out.empty()) {
    Fs fs;
    publish_file(fs, options.out, text.str());
  }
  if (options.json) {
    std::cout << text.str();
  } else {
    print(report);
  }
}

}  // namespace

void add_bench(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("bench", "times a recipe's steps here, on made-up tokens");
  const auto options = std::make_shared<BenchCommand>();
  options->recipe.add_to(*verb);
  verb->add_option("--steps", options->bench.steps, "steps that are timed");
  verb->add_option("--warmup", options->bench.warmup, "steps before them");
  verb->add_option("-o,--out", options->out, "a file for the JSON");
  verb->add_flag("--json", options->json, "print the JSON instead of the table");
  verb->footer(
      "Example: troupe bench run.yaml --steps 10 -o bench.json\n"
      "Learned routing is what training has; FORCED is equal loads, and no training speed.");
  verb->callback([options] { bench(*options); });
}

}  // namespace troupe
