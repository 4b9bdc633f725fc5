#include "apps/plan_layout.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <vector>

#include "apps/print.h"
#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/core/text/wrap.h"
#include "troupe/schedule/text.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/find_layouts.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/forecast/prove_layout.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/machine/bench_run.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/report/layout_picture.h"

namespace troupe {
namespace {

// A rank of a pipeline.
struct StageReport {
  std::vector<int> units = {};  // 0 the embedding, the last one the head
  double memory = 0;
  double idle = 0;  // part of the step in which it waits for other stages
  static void visit(auto& s, auto&& f) {
    f("units", s.units);
    f("memory", s.memory);
    f("idle", s.idle);
  }
};

struct LayoutReport {
  int64_t ranks = 1, micro_batch = 1;
  ParallelConfig parallel = {};
  double memory = 0;
  StepMemory parts = {};
  double step_seconds = 0, compute = 0, exchange = 0, tokens = 0, exposed = 0, bubble = 0;
  double update = 0;
  double collectives = 0, slowest = 0;
  double tokens_per_second = 0;
  double host = 0, copies = 0;  // of state in host memory: bytes, and seconds of an update
  std::optional<double> mfu = {};
  std::vector<StageReport> stages = {};  // empty: one rank has all layers
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
    f("tokens", r.tokens);
    f("exposed", r.exposed);
    f("bubble", r.bubble);
    f("update", r.update);
    f("collectives", r.collectives);
    f("slowest", r.slowest);
    f("tokens_per_second", r.tokens_per_second);
    f("host", r.host);
    f("copies", r.copies);
    f("mfu", r.mfu);
    f("stages", r.stages);
    f("fits", r.fits);
  }
};

bool fits_into(const LayoutForecast& f, double available) {
  return available <= 0 || f.rank.peak.total() <= available;
}

std::vector<StageReport> stages_of(const LayoutForecast& f) {
  std::vector<StageReport> out;
  const std::vector<int> ranks = chunk_ranks(f.work);
  for (const RankTimeline& rank : f.stages) {
    StageReport& stage = out.emplace_back();
    for (size_t unit = 0; unit < ranks.size(); ++unit) {
      if (ranks[unit] + 1 == std::ssize(out)) stage.units.push_back(static_cast<int>(unit));
    }
    stage.memory = rank.peak.total();
    stage.idle = rank.bubble / rank.seconds;
  }
  return out;
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
          .tokens = f.rank.tokens,
          .exposed = f.rank.exposed,
          .bubble = f.rank.bubble,
          .update = f.rank.update,
          .collectives = f.rank.collectives,
          .slowest = f.step_seconds - f.rank.seconds,
          .tokens_per_second = f.tokens_per_second,
          .host = f.host,
          .copies = f.copies,
          .mfu = f.mfu,
          .stages = stages_of(f),
          .fits = fits_into(f, available)};
}

// "33.3%"; "-" where the device's peak is not known.
std::string percent(std::optional<double> part) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f%%", 100 * part.value_or(0));
  return part ? text : "-";
}

void print_memory(const StepMemory& m) {
  print_text("memory of the fullest rank at its worst moment, GiB\n");
  const auto line = [](const char* what, double bytes) {
    print_text("  %-20s %9s\n", what, in_gib(bytes).c_str());
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
  print_text("a step %s, %s tokens/s, %s of each rank, %s\n", seconds_text(r.step_seconds).c_str(),
             short_number(r.tokens_per_second).c_str(),
             short_number(r.tokens_per_second / static_cast<double>(r.ranks)).c_str(), mfu.c_str());
  const auto line = [&](const char* what, double seconds, const char* why) {
    if (seconds <= 0) return;
    print_text("  %-20s %9s %5.1f%%   %s\n", what, seconds_text(seconds).c_str(),
               100 * seconds / r.step_seconds, why);
  };
  line("forward, backward", r.compute, "");
  line("experts' exchange", r.exchange, "waited for");
  line("tokens and keys", r.tokens, "waited for");
  line("gathers and sums", r.exposed, "waited for");
  line("other stages", r.bubble, "waited for");
  line("update", r.update, "");
  line("the slowest rank", r.slowest, "waited for");
  if (r.collectives <= 0) return;
  print_text("gathers and sums take %s, %.0f%% of it beside computation\n",
             seconds_text(r.collectives).c_str(), 100 * (1 - r.exposed / r.collectives));
}

// "1-3 7": neighbors joined.
std::string runs_of(const std::vector<int>& units) {
  std::string out;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool goes_on = i > 0 && units[i] == units[i - 1] + 1;
    const bool ends = i + 1 == units.size() || units[i + 1] != units[i] + 1;
    if (!goes_on) out.append(out.empty() ? "" : " ").append(std::to_string(units[i]));
    if (goes_on && ends) out.append("-").append(std::to_string(units[i]));
  }
  return out;
}

void print_stages(const LayoutReport& r) {
  if (r.stages.empty()) return;
  print_text("stages %s, %s\n%9s %9s %8s  %s\n", r.parallel.stages.c_str(),
             to_text(r.parallel.schedule).c_str(), "rank", "GiB", "idle",
             "units (0: embedding, last: head)");
  for (size_t i = 0; i < r.stages.size(); ++i) {
    const StageReport& stage = r.stages[i];
    print_text("%9zu %9s %8s  %s\n", i, in_gib(stage.memory).c_str(), percent(stage.idle).c_str(),
               runs_of(stage.units).c_str());
  }
}

std::string run_time(const ResolvedRun& run, const LayoutReport& r) {
  return short_time(static_cast<double>(run.plan.run.tokens) / r.tokens_per_second);
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
  print_text("%7s %10s %12s %12s %7s %8s %7s %6s %12s %12s %8s\n", "ranks", "step", "tokens/s",
             "of a rank", "MFU", "of best", "expert", "shard", "shard_ranks", "micro_batch", "GiB");
  for (const LayoutForecast& f : all) {
    const bool fits = fits_into(f, available);
    print_text("%7s %10s %12s %12s %7s %8s %7s %6s %12s %12s %8s%s\n",
               std::to_string(f.world).c_str(), seconds_text(f.step_seconds).c_str(),
               short_number(f.tokens_per_second).c_str(), short_number(each(f)).c_str(),
               percent(f.mfu).c_str(), fits ? percent(each(f) / best).c_str() : "-",
               std::to_string(f.parallel.expert).c_str(), to_text(f.parallel.shard).c_str(),
               std::to_string(mesh_of(f).shape().shard).c_str(),
               std::to_string(f.micro_batch).c_str(), in_gib(f.rank.peak.total()).c_str(),
               fits ? "" : ("  does not fit into " + in_gib(available)).c_str());
  }
}

// Where a step takes most longer than one of `best`: "other stages +12.3%".
std::string loss_beside(const LayoutForecast& best, const LayoutForecast& f) {
  const StepPart* most = nullptr;
  double longest = 0;
  for (const StepPart& part : kStepParts) {
    const double longer = f.rank.*part.seconds - best.rank.*part.seconds;
    if (longer <= longest) continue;
    longest = longer;
    most = &part;
  }
  return most == nullptr ? ""
                         : std::string(most->name) + " +" + percent(longest / best.step_seconds);
}

struct Column {
  const char* name;
  int width;
  std::string (*value)(const LayoutForecast&);
};

template <double RankTimeline::*kPart>
std::string part_of_step(const LayoutForecast& f) {
  return percent(f.rank.*kPart / f.step_seconds);
}

constexpr Column kColumns[] = {
    {"step", 9, [](const LayoutForecast& f) { return seconds_text(f.step_seconds); }},
    {"MFU", 6, [](const LayoutForecast& f) { return percent(f.mfu); }},
    {"rows", 6, part_of_step<&RankTimeline::exchange>},
    {"tokens", 6, part_of_step<&RankTimeline::tokens>},
    {"state", 6, part_of_step<&RankTimeline::exposed>},
    {"idle", 6, part_of_step<&RankTimeline::bubble>},
    {"GiB", 7, [](const LayoutForecast& f) { return in_gib(f.rank.peak.total()); }}};

constexpr int kLineWidth = 120;

// "--set 'parallel={expert: 2, shard: zero1, shard_ranks: 4}' --set train.micro_batch=2": gives a
// run this layout. Where it is longer than a line of kLineWidth, it continues as in a shell.
std::string set_lines(const LayoutForecast& f) {
  constexpr size_t kIndent = 5, kContinues = 2;
  const ParallelConfig& c = f.parallel;
  std::string axes = "tensor: " + std::to_string(c.tensor) +
                     ", context: " + std::to_string(c.context) +
                     ", pipeline: " + std::to_string(c.pipeline);
  if (c.pipeline > 1) {
    axes += ", schedule: " + to_text(c.schedule) + ", virtual: " + std::to_string(c.virtual_stages);
  }
  std::string rest = "expert: " + std::to_string(c.expert) +
                     ", expert_tensor: " + std::to_string(c.expert_tensor) +
                     ", shard: " + to_text(c.shard);
  if (c.shard == ShardKind::kFull && !c.reshard) rest += ", reshard: false";
  if (c.shard != ShardKind::kNone) {
    rest += ", shard_ranks: " + std::to_string(mesh_of(f).shape().shard);
  }
  std::string out, line(kIndent, ' ');
  for (const std::string& set : {"parallel={" + axes + "}", "parallel={" + rest + "}",
                                 "train.micro_batch=" + std::to_string(f.micro_batch)}) {
    const std::string word = "--set " + shell_word(set);
    if (line.size() > kIndent && line.size() + word.size() + kContinues > size_t{kLineWidth}) {
      out += line + "\\\n";
      line.assign(kIndent, ' ');
    }
    line += word + ' ';
  }
  line.pop_back();
  return out + line;
}

void print_wrapped(const std::string& text) {
  constexpr int kIndent = 2;
  print_text("%s\n", wrapped(text, kLineWidth, kIndent).c_str());
}

void print_choice(const std::vector<LayoutForecast>& all, size_t chosen, const std::string& why) {
  constexpr size_t kRows = 10;
  print_text("row ");
  for (const Column& c : kColumns) print_text("%*s ", c.width, c.name);
  print_text(" loses most by\n");
  const auto row = [&](size_t i) {
    print_text("%3s ", std::to_string(i + 1).c_str());
    for (const Column& c : kColumns) print_text("%*s ", c.width, c.value(all[i]).c_str());
    print_text(" %s%s\n%s\n", loss_beside(all.front(), all[i]).c_str(),
               i == chosen ? " <- a run takes it" : "", set_lines(all[i]).c_str());
  };
  for (size_t i = 0; i < std::min(all.size(), kRows); ++i) row(i);
  if (chosen >= kRows) row(chosen);
  if (!why.empty()) {
    print_wrapped("a run takes row " + std::to_string(chosen + 1) + ": " + why);
  }
  print_wrapped(
      "rows, tokens, state, idle: of the step, waiting for rows of experts, tokens and keys of "
      "ranks "
      "that share a microbatch, gathers and sums, other stages");
  if (all.size() > 1) {
    print_wrapped("the first beats the second by " + why_faster(all[0], all[1]));
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
         "is not a file of `troupe bench` (JSON with times[0].step_s); write one with -o");
  }
  const auto held = [&](const char* key, int64_t otherwise) {
    const auto at = json.find(key);
    return at != json.end() && at->is_number_integer() ? at->get<int64_t>() : otherwise;
  };
  if (held("ranks", 1) != 1 || held("sequence", recipe.data.sequence) != recipe.data.sequence) {
    fail(Code::kBadValue, options.bench,
         "measures " + std::to_string(held("ranks", 1)) + " ranks and sequences of " +
             std::to_string(held("sequence", 0)) + "; it must measure one rank and sequences of " +
             std::to_string(recipe.data.sequence) + ", the recipe's");
  }
  Recipe measured = recipe;  // with the batch of that step
  measured.train.global_batch = held("batch", recipe.train.global_batch);
  measured.train.global_batch_tokens = {};
  if (const int64_t rows = held("micro_batch", 0); rows > 0) measured.train.micro_batch = rows;
  return calibrated(measured, machine, on_gpu, times->front()["step_s"].get<double>());
}

RanksAtHand ranks_of(int64_t ranks, const Machine& machine, bool on_gpu, double memory) {
  return {.world = ranks,
          .per_host = std::min(ranks, machine.ranks_per_host),
          .memory = memory,
          .on_gpu = on_gpu};
}

// What a run on those ranks would choose where the recipe leaves the layout open, and why.
LayoutChoice choice_of(const Recipe& recipe, int64_t ranks, const Machine& machine, bool on_gpu,
                       double memory) {
  return choose_layout(recipe, ranks_of(ranks, machine, on_gpu, memory), machine);
}

// Those that a run chooses among; where there are none, those that would fit with nothing to spare.
LayoutSearch choices_of(const Recipe& recipe, const RanksAtHand& ranks, const Machine& machine) {
  RanksAtHand usable = ranks;
  usable.memory *= kMostMemory;
  LayoutSearch out = find_layouts(recipe, usable, machine, OpenAxes::kAll);
  return out.fit.empty() ? find_layouts(recipe, ranks, machine, OpenAxes::kAll) : out;
}

// From the fewest ranks that the layout allows, doubled up to all.
std::vector<LayoutForecast> scaling_of(const Recipe& recipe, const Machine& machine, bool on_gpu,
                                       int64_t ranks, double memory) {
  std::vector<LayoutForecast> out;
  for (int64_t n = 1;; n = std::min(2 * n, ranks)) {
    try {
      const Recipe larger = with_batch_of(recipe, n);
      out.push_back(forecast_layout(resolve(larger, choice_of(larger, n, machine, on_gpu, memory)),
                                    n, machine, on_gpu));
    } catch (const Error&) {
      if (n == ranks) throw;  // the least that was asked for must do
    }
    if (n == ranks) return out;
  }
}

// Whether any fits.
bool print_choices(const LayoutOptions& options, const Recipe& recipe, const Machine& machine,
                   const RanksAtHand& ranks) {
  const auto begin = std::chrono::steady_clock::now();
  const LayoutSearch search = choices_of(recipe, ranks, machine);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (options.json) {
    for (const LayoutForecast& f : search.fit) {
      write_json(std::cout, report_of(f, ranks.memory)), std::cout << '\n';
    }
    return !search.fit.empty();
  }
  print_text("%s layouts simulated, %s more costed without lists, in %s\n",
             std::to_string(search.simulated).c_str(), std::to_string(search.quick).c_str(),
             seconds_text(took.count()).c_str());
  if (search.fit.empty()) {
    if (search.least) print_text("%s\n", nothing_fits(recipe, *search.least, ranks).c_str());
    return false;
  }
  const size_t chosen = chosen_of(search.fit, recipe.parallel, ranks);
  print_choice(search.fit, chosen, why_not_first(search.fit, chosen, recipe.parallel, ranks));
  print_stages(report_of(search.fit[chosen], ranks.memory));
  return true;
}

// The forecast beside a rank that is played here.
void print_measured(const Recipe& recipe, const LayoutForecast& forecast) {
  Recipe laid = recipe;
  laid.parallel = forecast.parallel;
  const BenchReport report = bench_run(laid, {.warmup = 1, .steps = 2, .ranks = forecast.world});
  const auto peak = static_cast<double>(report.peak_bytes);
  const auto said = static_cast<double>(report.forecast_bytes);
  print_text(
      "measured on %s as one of them: memory %s GiB at most where %s are forecast (%+.0f%%), "
      "a step of its own %s\n",
      report.device.c_str(), in_gib(peak).c_str(), in_gib(said).c_str(), 100 * (said / peak - 1),
      seconds_text(report.times.front().step_s).c_str());
}

}  // namespace

void LayoutOptions::add_to(CLI::App& verb) {
  verb.add_option("--ranks", ranks, "number of ranks of --machine")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb.add_option("--machine", machine, "machine file (machines/); default: run.machine");
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

void print_host_state(double bytes, double seconds, double rate, bool measured) {
  if (bytes <= 0) return;
  print_text(
      "host memory: %s GiB of a rank's masters and optimizer state; an update copies them in %s, "
      "each way at %.0f GB/s%s\n",
      in_gib(bytes).c_str(), seconds_text(seconds).c_str(), rate / 1e9,
      measured ? "" : " (assumed)");
}

bool plan_layout(const LayoutOptions& options, const Recipe& recipe, double available) {
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
    return print_choices(options, recipe, machine,
                         ranks_of(options.ranks, machine, on_gpu, available));
  }
  const ResolvedRun run =
      resolve(recipe, choice_of(recipe, options.ranks, machine, on_gpu, available));
  const LayoutForecast forecast = forecast_layout(run, options.ranks, machine, on_gpu);
  const LayoutProof proof =
      prove_layout(run, run.parallel, run.plan.batch, forecast.micro_batch, options.ranks);
  const LayoutReport report = report_of(forecast, available);
  if (!options.picture.empty()) {
    Fs fs;
    write_output(fs, options.picture, layout_picture(forecast).str());
  }
  if (options.json) {
    write_json(std::cout, report);
    std::cout << '\n';
  } else {
    print_text("%s ranks of %s\n%s", std::to_string(options.ranks).c_str(), machine.name.c_str(),
               to_text(mesh_of(forecast)).c_str());
    print_text("%s\n", run.layout_why.c_str());
    if (options.ranks > 1) print_text("proof: %s\n", to_text(proof).c_str());
    print_memory(report.parts);
    print_host_state(report.host, report.copies, host_rate(machine), machine.host_link > 0);
    print_time(report);
    print_stages(report);
    print_text("the run takes %s; disk: %s\n", run_time(run, report).c_str(),
               judge_disk(run, on_gpu).line.c_str());
    if (options.measure) print_measured(run, forecast);
    if (options.list) print_text("%s", to_text(forecast.schedule).c_str());
  }
  if (!report.fits && !options.json) {
    print_text("E7006 it will not fit: a rank has %s GiB\n", in_gib(available).c_str());
  }
  return report.fits;
}

}  // namespace troupe
