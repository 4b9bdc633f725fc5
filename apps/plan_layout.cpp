#include "apps/plan_layout.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/publish.h"
#include "troupe/schedule/text.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/machine/bench_run.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/report/layout_picture.h"

namespace troupe {
namespace {

struct LayoutReport {
  int64_t ranks = 1, micro_batch = 1;
  ParallelConfig parallel = {};
  double memory = 0;
  StepMemory parts = {};
  double step_seconds = 0, compute = 0, exchange = 0, exposed = 0, bubble = 0, update = 0;
  double collectives = 0, slowest = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu = {};
  bool fits = true;
  static void visit(auto& r, auto&& f) {
    f("ranks", r.ranks);
    f("micro_batch", r.micro_batch);
    f("parallel", r.parallel);
    f("memory", r.memory);
    f("parts", r.parts);
    f("step_seconds", r.step_seconds);
    f("compute", r.compute);
    f("exchange", r.exchange);
    f("exposed", r.exposed);
    f("bubble", r.bubble);
    f("update", r.update);
    f("collectives", r.collectives);
    f("slowest", r.slowest);
    f("tokens_per_second", r.tokens_per_second);
    f("mfu", r.mfu);
    f("fits", r.fits);
  }
};

bool fits_into(const LayoutForecast& f, double available) {
  return available <= 0 || f.rank.peak.total() <= available;
}

LayoutReport report_of(const LayoutForecast& f, double available) {
  return {.ranks = f.world,
          .micro_batch = f.micro_batch,
          .parallel = f.parallel,
          .memory = f.rank.peak.total(),
          .parts = f.rank.peak,
          .step_seconds = f.step_seconds,
          .compute = f.rank.compute,
          .exchange = f.rank.exchange,
          .exposed = f.rank.exposed,
          .bubble = f.rank.bubble,
          .update = f.rank.update,
          .collectives = f.rank.collectives,
          .slowest = f.step_seconds - f.rank.seconds,
          .tokens_per_second = f.tokens_per_second,
          .mfu = f.mfu,
          .fits = fits_into(f, available)};
}

// "33.3%"; "-" where the device's peak is not known.
std::string percent(std::optional<double> part) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f%%", 100 * part.value_or(0));
  return part ? text : "-";
}

void print_memory(const StepMemory& m) {
  std::printf("memory of a rank at its worst moment, GiB\n");
  const auto line = [](const char* what, double bytes) {
    std::printf("  %-20s %9s\n", what, in_gib(bytes).c_str());
  };
  line("values", m.values);
  line("masters, optimizer", m.state);
  line("gradients", m.gradients);
  line("kept for backward", m.activations);
  line("working space", m.workspace);
  line("runtime", m.runtime);
  line("in all", m.total());
}

void print_time(const LayoutReport& r) {
  const std::string mfu = r.mfu ? "MFU " + percent(r.mfu) + " of the devices' peak"
                                : std::string("MFU not known: the machine file names no `peak`");
  std::printf("a step %s, %s tokens/s, %s of each rank, %s\n", seconds_text(r.step_seconds).c_str(),
              short_number(r.tokens_per_second).c_str(),
              short_number(r.tokens_per_second / static_cast<double>(r.ranks)).c_str(),
              mfu.c_str());
  const auto line = [&](const char* what, double seconds, const char* why) {
    if (seconds <= 0) return;
    std::printf("  %-20s %9s %5.1f%%   %s\n", what, seconds_text(seconds).c_str(),
                100 * seconds / r.step_seconds, why);
  };
  line("forward, backward", r.compute, "");
  line("experts' exchange", r.exchange, "waited for");
  line("gathers and sums", r.exposed, "waited for");
  line("other stages", r.bubble, "waited for");
  line("update", r.update, "");
  line("the slowest rank", r.slowest, "waited for");
  if (r.collectives <= 0) return;
  std::printf("gathers and sums take %s, %.0f%% of it beside computation\n",
              seconds_text(r.collectives).c_str(), 100 * (1 - r.exposed / r.collectives));
}

std::string run_time(const Recipe& recipe, const LayoutReport& r) {
  return short_time(static_cast<double>(plan_of(recipe).run.tokens) / r.tokens_per_second);
}

// `of best`: a rank's tokens a second over the most that a rank has in any row that fits.
void print_scaling(const std::vector<LayoutForecast>& all, double available) {
  const auto each = [](const LayoutForecast& f) {
    return f.tokens_per_second / static_cast<double>(f.world);
  };
  double best = 0;
  for (const LayoutForecast& f : all) {
    if (fits_into(f, available)) best = std::max(best, each(f));
  }
  std::printf("%7s %10s %12s %12s %7s %8s %7s %6s %12s %12s %8s\n", "ranks", "step", "tokens/s",
              "of a rank", "MFU", "of best", "expert", "shard", "shard_ranks", "micro_batch",
              "GiB");
  for (const LayoutForecast& f : all) {
    const bool fits = fits_into(f, available);
    std::printf("%7s %10s %12s %12s %7s %8s %7s %6s %12s %12s %8s%s\n",
                std::to_string(f.world).c_str(), seconds_text(f.step_seconds).c_str(),
                short_number(f.tokens_per_second).c_str(), short_number(each(f)).c_str(),
                percent(f.mfu).c_str(), fits ? percent(each(f) / best).c_str() : "-",
                std::to_string(f.parallel.expert).c_str(), to_text(f.parallel.shard).c_str(),
                std::to_string(mesh_of(f).shape().shard).c_str(),
                std::to_string(f.micro_batch).c_str(), in_gib(f.rank.peak.total()).c_str(),
                fits ? "" : ("  does not fit into " + in_gib(available)).c_str());
  }
}

void print_choice(const std::vector<LayoutForecast>& all) {
  std::printf("%7s %6s %12s %12s %10s %7s %10s %10s %8s\n", "expert", "shard", "shard_ranks",
              "micro_batch", "step", "MFU", "exchange", "exposed", "GiB");
  for (size_t i = 0; i < std::min<size_t>(all.size(), 8); ++i) {
    const LayoutForecast& f = all[i];
    const auto part = [&](double seconds) { return 100 * seconds / f.step_seconds; };
    std::printf("%7s %6s %12s %12s %10s %7s %9.1f%% %9.1f%% %8s\n",
                std::to_string(f.parallel.expert).c_str(), to_text(f.parallel.shard).c_str(),
                std::to_string(mesh_of(f).shape().shard).c_str(),
                std::to_string(f.micro_batch).c_str(), seconds_text(f.step_seconds).c_str(),
                percent(f.mfu).c_str(), part(f.rank.exchange), part(f.rank.exposed),
                in_gib(f.rank.peak.total()).c_str());
  }
}

// With the rates that a measured step needs, where there is one.
Machine machine_of(const LayoutOptions& options, const Recipe& recipe, const Machine& machine,
                   bool on_gpu) {
  if (options.bench.empty()) return machine;
  std::ifstream file(options.bench);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto times = json.is_object() ? json.find("times") : json.end();
  if (times == json.end() || !times->is_array() || times->empty() ||
      !times->front().contains("step_s") || !times->front()["step_s"].is_number()) {
    fail(Code::kBadValue, options.bench,
         "is no file of `troupe bench` (JSON with times[0].step_s); write one with -o");
  }
  const auto held = [&](const char* key, int64_t otherwise) {
    const auto at = json.find(key);
    return at != json.end() && at->is_number_integer() ? at->get<int64_t>() : otherwise;
  };
  if (held("ranks", 1) != 1 || held("sequence", recipe.data.sequence) != recipe.data.sequence) {
    fail(Code::kBadValue, options.bench,
         "is of " + std::to_string(held("ranks", 1)) + " ranks and sequences of " +
             std::to_string(held("sequence", 0)) + "; it must be of one rank and, as the recipe, " +
             std::to_string(recipe.data.sequence));
  }
  Recipe measured = recipe;  // with the batch of that step
  measured.train.global_batch = held("batch", recipe.train.global_batch);
  measured.train.global_batch_tokens = {};
  if (const int64_t rows = held("micro_batch", 0); rows > 0) measured.train.micro_batch = rows;
  return calibrated(measured, machine, on_gpu, times->front()["step_s"].get<double>());
}

// What a run on those ranks would choose where the recipe leaves the layout open, and why.
LayoutChoice choice_of(const Recipe& recipe, int64_t ranks, const Machine& machine, bool on_gpu,
                       double memory) {
  const RanksAtHand at_hand{.world = ranks,
                            .per_host = std::min(ranks, machine.ranks_per_host),
                            .memory = memory,
                            .on_gpu = on_gpu};
  return choose_layout(recipe, at_hand, machine);
}

// Those that a run chooses among; where there are none, those that would fit with nothing to spare.
std::vector<LayoutForecast> choices_of(const Recipe& recipe, int64_t ranks, const Machine& machine,
                                       bool on_gpu, double memory) {
  std::vector<LayoutForecast> out =
      layouts_that_fit(recipe, ranks, machine, on_gpu, kMostMemory * memory);
  return out.empty() ? layouts_that_fit(recipe, ranks, machine, on_gpu, memory) : out;
}

// From the fewest ranks that the layout allows, doubled up to all.
std::vector<LayoutForecast> scaling_of(const Recipe& recipe, const Machine& machine, bool on_gpu,
                                       int64_t ranks, double memory) {
  std::vector<LayoutForecast> out;
  for (int64_t n = 1;; n = std::min(2 * n, ranks)) {
    try {
      Recipe laid = with_batch_of(recipe, n);
      const LayoutChoice choice = choice_of(laid, n, machine, on_gpu, memory);
      laid.parallel = choice.parallel;
      laid.train.micro_batch = choice.micro_batch;
      out.push_back(forecast_layout(laid, n, machine, on_gpu));
    } catch (const Error&) {
      if (n == ranks) throw;  // the least that was asked for must do
    }
    if (n == ranks) return out;
  }
}

// The forecast beside a rank that is played here.
void print_measured(const Recipe& recipe, const LayoutForecast& forecast) {
  Recipe laid = recipe;
  laid.parallel = forecast.parallel;
  const BenchReport report = bench_run(laid, {.warmup = 1, .steps = 2, .ranks = forecast.world});
  const auto peak = static_cast<double>(report.peak_bytes);
  const auto said = static_cast<double>(report.forecast_bytes);
  std::printf(
      "measured on %s as one of them: memory %s GiB at most where %s are forecast (%+.0f%%), "
      "a step of its own %s\n",
      report.device.c_str(), in_gib(peak).c_str(), in_gib(said).c_str(), 100 * (said / peak - 1),
      seconds_text(report.times.front().step_s).c_str());
}

}  // namespace

void LayoutOptions::add_to(CLI::App& verb) {
  verb.add_option("--ranks", ranks, "the run on so many ranks of --machine")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb.add_option("--machine", machine,
                  "what a rank and its links reach: a file (machines/); run.machine if not said");
  verb.add_option(
      "--bench", bench,
      "JSON of `troupe bench` with this recipe on one rank: scales the machine's rates");
  verb.add_flag(
      "--scaling", scaling,
      "a table up to --ranks, each rank with the work of one (weak scaling), with the layouts");
  verb.add_flag("--choose", choose,
                "the fastest layouts of --ranks that fit into 90 % of the memory");
  verb.add_option("--picture", picture, "an SVG file with the step of a rank, action by action");
  verb.add_flag("--measure", measure,
                "run three steps on this device as one of the ranks, and tell what it took");
  verb.add_flag("--list", list, "the actions that each rank issues in a step");
}

bool plan_layout(const LayoutOptions& options, Recipe recipe, double available) {
  const std::string& path = options.machine.empty() ? recipe.run.machine : options.machine;
  if (path.empty()) {
    fail(Code::kBadValue, "--ranks",
         "needs --machine FILE, or run.machine in the recipe: one of machines/, or what `troupe "
         "bench machine` writes");
  }
  const Machine given = load_machine(path);
  const bool on_gpu = recipe.run.device == DeviceKind::kCuda ||
                      (recipe.run.device == DeviceKind::kAuto && given.gpu);
  const Machine machine = machine_of(options, recipe, given, on_gpu);
  if (available <= 0) available = machine.memory;
  if (options.scaling) {
    const std::vector<LayoutForecast> all =
        scaling_of(recipe, machine, on_gpu, options.ranks, available);
    if (options.json) {
      for (const LayoutForecast& f : all) {
        write_json(std::cout, report_of(f, available)), std::cout << '\n';
      }
    } else {
      print_scaling(all, available);
    }
    return fits_into(all.back(), available);
  }
  if (options.choose) {
    const std::vector<LayoutForecast> all =
        choices_of(recipe, options.ranks, machine, on_gpu, available);
    if (options.json) {
      for (const LayoutForecast& f : all) {
        write_json(std::cout, report_of(f, available)), std::cout << '\n';
      }
    } else if (all.empty()) {
      std::printf(
          "no layout of %s ranks fits into %s GiB each: more ranks, or a smaller "
          "train.micro_batch, or train.recompute\n",
          std::to_string(options.ranks).c_str(), in_gib(available).c_str());
    } else {
      print_choice(all);
    }
    return !all.empty();
  }
  const LayoutChoice choice = choice_of(recipe, options.ranks, machine, on_gpu, available);
  recipe.parallel = choice.parallel;
  recipe.train.micro_batch = choice.micro_batch;
  const LayoutForecast forecast = forecast_layout(recipe, options.ranks, machine, on_gpu);
  const LayoutReport report = report_of(forecast, available);
  if (!options.picture.empty()) {
    Fs fs;
    publish_file(fs, options.picture, layout_picture(forecast).str());
  }
  if (options.json) {
    write_json(std::cout, report);
    std::cout << '\n';
  } else {
    std::printf("%s ranks of %s\n%s", std::to_string(options.ranks).c_str(), machine.name.c_str(),
                to_text(mesh_of(forecast)).c_str());
    std::printf("%s\n", choice.why.c_str());
    print_memory(report.parts);
    print_time(report);
    std::printf("the run takes %s; disk: %s\n", run_time(recipe, report).c_str(),
                judge_disk(recipe, on_gpu).line.c_str());
    if (options.measure) print_measured(recipe, forecast);
    if (options.list) std::printf("%s", to_text(forecast.schedule).c_str());
  }
  if (!report.fits && !options.json) {
    std::printf("E7006 it will not fit: a rank has %s GiB\n", in_gib(available).c_str());
  }
  return report.fits;
}

}  // namespace troupe
