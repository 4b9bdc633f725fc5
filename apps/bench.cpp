// troupe bench: the time of a recipe's steps here; of a machine's own operations, for `plan`.
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "apps/print.h"
#include "apps/recipe_options.h"
#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/config/yaml.h"
#include "troupe/core/file/publish.h"
#include "troupe/distributed/world/peer_hosts.h"
#include "troupe/distributed/world/world.h"
#include "troupe/plan/machine.h"
#include "troupe/plan/pairs.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/machine/bench_machine.h"
#include "troupe/train/machine/bench_pairs.h"
#include "troupe/train/machine/bench_run.h"
#include "troupe/train/observe/memory_use.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/version.h"

namespace troupe {
namespace {

struct BenchCommand {
  RecipeOptions recipe;
  BenchOptions bench;
  std::string out;
  bool json = false;
};

void print(const BenchReport& report) {
  print_text("troupe %s (%s) on %s, %s, %lld threads\n", report.version.c_str(),
             report.commit.c_str(), report.device.c_str(), report.processor.c_str(),
             static_cast<long long>(report.threads));
  print_text("step of %lld x %lld tokens, micro batch %lld; median of %lld after %lld\n",
             static_cast<long long>(report.batch), static_cast<long long>(report.sequence),
             static_cast<long long>(report.micro_batch), static_cast<long long>(report.steps),
             static_cast<long long>(report.warmup));
  if (report.ranks > 1) {
    print_text("rank %lld of %lld, played alone: times are its own\n",
               static_cast<long long>(report.rank), static_cast<long long>(report.ranks));
  }
  for (const BenchTimes& t : report.times) {
    print_text(
        "%-8s %.4f s (forward %.4f, backward %.4f, update %.4f), %.0f tokens/s, %.3f "
        "TFLOP/s, load %.2f\n",
        (t.routing == "forced" ? "FORCED" : t.routing).c_str(), t.step_s, t.forward_s, t.backward_s,
        t.update_s, t.tokens_s, t.tflops, t.max_over_mean);
  }
  const auto gib = [](int64_t bytes) { return in_gib(static_cast<double>(bytes)); };
  print_text("memory %s GiB at most, forecast %s", gib(report.peak_bytes).c_str(),
             gib(report.forecast_bytes).c_str());
  if (report.ranks > 1 && report.times.size() > 1) {
    print_text("; %s with the loads of learned routing",
               gib(report.times.front().peak_bytes).c_str());
  }
  print_text("\n");
}

void bench(const BenchCommand& options) {
  keep_freed_memory();  // as `train` does
  Sources sources;
  Recipe recipe = load_recipe(options.recipe.path, options.recipe.sets, sources);
  validate(recipe, sources);
  if (options.bench.ranks < 1) fail(Code::kBadValue, "--ranks", "must be at least 1");
  if (options.bench.rank < 0 || options.bench.rank >= options.bench.ranks) {
    fail(Code::kBadValue, "--rank", options.bench.rank, "is none of the", options.bench.ranks,
         "ranks");
  }
  const bool alone = options.bench.ranks == 1;
  const RanksAtHand ranks{.world = options.bench.ranks,
                          .memory = alone ? available_memory(recipe) : 0,
                          .on_gpu = runs_on_gpu(recipe)};
  recipe.train.micro_batch = choose_micro_batch(recipe, ranks).sequences;
  const BenchReport report = bench_run(recipe, options.bench);
  std::ostringstream text;
  write_json(text, report);
  text << '\n';
  if (!options.out.empty()) {
    Fs fs;
    write_output(fs, options.out, text.str());
  }
  if (options.json) {
    std::cout << text.str();
  } else {
    print(report);
  }
}

struct MachineCommand {
  DeviceKind device = DeviceKind::kAuto;
  std::string like, name, out, expect;
};

// What is slow here, or on one of the ranks: rank 0 reports it; all ranks fail where a file says
// what there should be.
void judge(const MachineCommand& options, const Machine& measured, World& world, Call& call) {
  std::ostringstream own;
  print_config(own, measured);
  std::vector<Machine> ranks;
  for (const std::string& text : world.all_gather_texts("machine", own.str())) {
    read_config(parse_yaml(text, "a rank's rates"), ranks.emplace_back());
  }
  std::optional<Machine> expected;
  if (!options.expect.empty()) expected = load_machine(options.expect);
  std::vector<std::string> slow = slow_parts(ranks, expected ? &*expected : nullptr);
  if (world.size() > 2) {
    for (std::string& line : slow_pairs(bench_pairs(world.device(), world))) {
      slow.push_back(std::move(line));
    }
  }
  if (world.rank() == 0) {
    for (const std::string& line : slow) std::cerr << line << '\n';
  }
  if (slow.empty() || !expected) return;
  call.code = static_cast<int>(ExitClass::kResource);
  if (world.rank() != 0) return;
  fail(Code::kSlowMachine, options.expect, std::to_string(slow.size()),
       "rates are under 80% of it");
}

// Where the machine file says what cannot be measured here, it is taken from `like`.
void bench_machine(const MachineCommand& options, Call& call) {
  Machine assumed;
  if (!options.like.empty()) assumed = load_machine(options.like);
  const LauncherEnvironment place = launcher_environment().value_or(LauncherEnvironment{});
  const c10::Device device = device_of(options.device, place.local_rank);
  PeerHosts::of_environment();  // E2005 here, and not while ranks meet
  World world(place, device, {});
  Machine machine = bench_machine(device, world, assumed);
  if (world.rank() != 0) return judge(options, machine, world, call);
  const RunEnvironment here = this_environment({}, device.str());
  machine.name = options.name.empty() ? here.processor : options.name;
  machine.measured = "troupe " + version() + " (" + commit() + "), " +
                     std::to_string(world.size()) + " rank(s) on " + device.str() + ", " +
                     std::to_string(here.threads) + " threads";
  std::ostringstream text;
  print_config(text, machine);
  if (options.out.empty()) {
    std::cout << text.str();
  } else {
    Fs fs;
    write_output(fs, options.out, text.str());
  }
  judge(options, machine, world, call);
}

CLI::App* add_bench_machine(CLI::App& bench, Call& call) {
  CLI::App* verb =
      bench.add_subcommand("machine", "measures this machine for `troupe plan --machine`");
  const auto options = std::make_shared<MachineCommand>();
  verb->add_option_function<std::string>(
      "--device",
      [options](const std::string& text) {
        if (!from_text(text, options->device)) {
          fail(Code::kBadValue, "--device", "must be", expectation(text, options->device).wanted,
               ", not", text);
        }
      },
      "cpu, cuda, or auto");
  verb->add_option("--like", options->like, "machine file for values that are not measured");
  verb->add_option("--name", options->name, "name of the machine; default: the device's name");
  verb->add_option("-o,--out", options->out, "output file (YAML)");
  verb->add_option("--expect", options->expect,
                   "machine file: lists rates more than 20% below it, on any rank, and exits with "
                   "7");
  verb->footer(
      "Example: troupe bench machine -o here.yaml\n"
      "         troupe launch -n 2 -- bench machine -o two.yaml     with the links between ranks\n"
      "         troupe launch -n 8 -- bench machine --expect ours.yaml   before a long run");
  verb->callback([options, &call] { bench_machine(*options, call); });
  return verb;
}

}  // namespace

void add_bench(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("bench", "times a recipe's steps here, on random tokens");
  const auto options = std::make_shared<BenchCommand>();
  options->recipe.add_to(*verb);
  CLI::App* const machine = add_bench_machine(*verb, call);
  CLI::Option* const recipe = verb->get_option("recipe")->required(false);
  verb->add_option("--steps", options->bench.steps, "timed steps");
  verb->add_option("--warmup", options->bench.warmup, "warmup steps");
  verb->add_option("--ranks", options->bench.ranks,
                   "simulates one rank of N without the others: its memory and own time");
  verb->add_option("--rank", options->bench.rank,
                   "which one; in a pipeline its stage's memory is forecast");
  verb->add_option("-o,--out", options->out, "output file (JSON)");
  verb->add_flag("--json", options->json, "print JSON instead of a table");
  verb->footer(
      "Example: troupe bench run.yaml --steps 10 -o bench.json\n"
      "Learned routing is what training uses; FORCED has equal expert loads and is no training "
      "speed.");
  verb->callback([options, machine, recipe] {
    if (machine->parsed()) return;
    if (recipe->empty()) throw CLI::RequiredError("recipe");
    bench(*options);
  });
}

}  // namespace troupe
