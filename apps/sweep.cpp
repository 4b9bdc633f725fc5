// troupe sweep: a recipe with several values of some keys, a run for each combination, one table.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/local_ranks.h"
#include "apps/print.h"
#include "apps/sweep_facts.h"
#include "apps/sweep_grid.h"
#include "apps/sweep_result.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/stop.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/report/report.h"
#include "troupe/train/run/open_data.h"

namespace troupe {
namespace {

struct SweepOptions {
  std::string recipe, out;
  std::vector<std::string> sets;
  int64_t sample = 0;  // 0: all combinations
  uint64_t seed = 1;
  int jobs = 1;
  bool quiet = false, json = false;
};

struct SweepRun {
  SweepPoint point;
  std::string folder;
  DeviceKind device = DeviceKind::kAuto;

  std::vector<std::string> words(const std::string& recipe) const {  // of `troupe train`
    std::vector<std::string> out = {"train", recipe, "--quiet"};
    for (const std::string& set : point.sets) out.insert(out.end(), {"--set", set});
    out.insert(out.end(), {"--set", "checkpoint.dir=" + to_text(folder)});
    return out;
  }
};

// What is wrong with the runs: each line once, with the names of the runs that have it.
class RunFaults {
 public:
  void add(const std::string& run, const Error& error) {
    if (lines_.empty()) code_ = error.code();
    std::istringstream lines(error.what());
    for (std::string line; std::getline(lines, line);) {
      const auto found = std::ranges::find(lines_, line, &Line::first);
      (found == lines_.end() ? lines_.emplace_back(line, std::vector<std::string>()) : *found)
          .second.push_back(run);
    }
  }
  void throw_if_any(size_t runs) const {
    if (lines_.empty()) return;
    std::string text;
    for (const auto& [line, names] : lines_) {
      text += (text.empty() ? "" : "\n") + line;
      if (names.size() == runs) continue;
      text += " (in " + names.front();
      if (names.size() > 1) text += " and " + std::to_string(names.size() - 1) + " more";
      text += ')';
    }
    throw Error(text, code_);
  }

 private:
  using Line = std::pair<std::string, std::vector<std::string>>;
  std::vector<Line> lines_;
  Code code_ = Code::kBadValue;
};

// The recipe of each run, with everything looked at that `troupe check` looks at without a device:
// keys, values, layout, data. Data that several runs have in common are opened once.
class RunChecker {
 public:
  explicit RunChecker(const std::string& path) : path_(path) {}

  // Throws one Error with all faults of one run.
  Recipe checked(const SweepPoint& point) {
    Sources sources;
    Recipe recipe = load_recipe(path_, point.sets, sources);
    if (recipe.checkpoint.dir.empty()) recipe.checkpoint.dir = point.name;  // it gets its own
    validate(recipe, sources);
    if (recipe.checkpoint.resume.kind != Resume::kAuto) {
      fail(Code::kBadValue, "checkpoint.resume", "must be auto: a sweep continues its runs itself");
    }
    require_one_rank(recipe.parallel);
    const ResolvedRun run = resolve_alone(recipe);
    std::string data = std::to_string(run.plan.run.samples) + ' ' + std::to_string(run.model.vocab);
    for (const auto& [key, value] : flatten(recipe.data)) data.append(key).append(value);
    if (seen_.insert(data).second) {
      const Log log({stderr_sink()}, Level::kWarning);
      open_data(run, {log, log});
    }
    return recipe;
  }

 private:
  const std::string& path_;
  std::set<std::string> seen_;
};

bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM;
}

// Trains the runs that are not finished, `jobs` at a time, each in a process of its own.
class Sweeper {
 public:
  Sweeper(const SweepOptions& options, const std::vector<SweepRun>& runs, Waiter& waiter)
      : options_(options),
        runs_(runs),
        waiter_(waiter),
        slots_(std::min(static_cast<size_t>(options.jobs), runs.size())),
        codes_(runs.size(), 0),
        log_({stderr_sink()}, options.quiet ? Level::kWarning : Level::kInfo, "sweep: ") {}

  void go() {
    for (size_t run = 0; run < runs_.size(); ++run) {
      if (result_of(run).state != SweepState::kFinished) todo_.push_back(run);
    }
    const size_t kept = runs_.size() - todo_.size();
    log_.info(std::to_string(runs_.size()) + " runs, " + std::to_string(kept) +
              " of them finished before; " + std::to_string(slots_.size()) + " at a time");
    for (fill_slots(); busy(); fill_slots()) {
      const int signal = waiter_.wait({});
      if (signal != SIGCHLD) pass_on(signal);
      for (Slot& slot : slots_) reap(slot);
    }
  }

  // As the folders tell, and what this process alone knows of a run that could not write its end.
  SweepResult result_of(size_t run) const {
    const SweepRun& of = runs_[run];
    SweepResult out{.name = of.point.name, .folder = of.folder, .set = of.point.swept};
    read_result(out);
    if (codes_[run] == 0) return out;
    out.code = codes_[run];
    if (out.state == SweepState::kFailed || out.state == SweepState::kKilled) return out;
    out.state = SweepState::kFailed;
    if (out.why.empty()) out.why = "its process ended with " + std::to_string(codes_[run]);
    return out;
  }

  bool stopped() const { return stopping_; }
  const Log& log() const { return log_; }
  // Of the first run that failed here; 0: none did.
  int code() const {
    const auto bad = std::ranges::find_if(codes_, [](int code) { return code != 0; });
    return bad == codes_.end() ? 0 : *bad;
  }

 private:
  struct Slot {
    size_t run = 0;
    std::unique_ptr<LocalRanks> process;  // null: the slot is free
  };

  bool busy() const {
    return std::ranges::any_of(slots_, [](const Slot& slot) { return slot.process != nullptr; });
  }

  void fill_slots() {
    for (size_t i = 0; i < slots_.size() && !stopping_ && next_ < todo_.size(); ++i) {
      if (slots_[i].process != nullptr) continue;
      const size_t run = todo_[next_++];
      const SweepRun& of = runs_[run];
      log_.info(of.point.name + ": begins, " + std::to_string(next_) + " of " +
                std::to_string(todo_.size()));
      slots_[i] = {.run = run,
                   .process = std::make_unique<LocalRanks>(
                       of.words(options_.recipe), std::vector<Variables>{variables(i, of.device)})};
    }
  }

  // Where several runs share the machine, each has its part of the cores and a GPU of its own.
  Variables variables(size_t slot, DeviceKind device) const {
    if (slots_.size() == 1) return {};
    Variables out;
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      const int64_t threads = std::max<int64_t>(host_cores() / std::ssize(slots_), 1);
      out.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    }
    const int64_t gpus = gpus_for(device);
    if (gpus == 0) return out;
    const size_t own = slot % static_cast<size_t>(gpus);
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    out.emplace_back("CUDA_VISIBLE_DEVICES",
                     visible == nullptr ? std::to_string(own) : split_values(visible).at(own));
    return out;
  }

  void pass_on(int signal) {
    if (asks_to_stop(signal) && !std::exchange(stopping_, true)) {
      log_.warning("asked to stop: no run begins any more; those under way save and stop");
    }
    for (const Slot& slot : slots_) {
      if (slot.process == nullptr) continue;
      slot.process->send(signal);
      if (slot.process->all_stand_still()) slot.process->send(SIGCONT);  // so that it takes it
    }
  }

  void reap(Slot& slot) {
    if (slot.process == nullptr) return;
    const std::vector<RankEnd> ends = slot.process->reap();
    if (ends.empty()) return;
    const RankEnd& end = ends.front();
    slot.process.reset();
    const std::string& name = runs_[slot.run].point.name;
    // Stopped before it handled signals: nothing had begun that could be lost.
    const bool obeyed = stopping_ && (end.signal == SIGTERM || end.signal == SIGINT);
    codes_[slot.run] = obeyed ? 0 : end.code;
    const SweepResult result = result_of(slot.run);
    if (codes_[slot.run] != 0) return log_.error(name + ": " + result.why);
    log_.info(name + ": " + to_text(result.state) + " at step " + std::to_string(result.step) +
              (result.of.empty() ? "" : ", " + result.of + " loss " + fixed(result.loss, 4)));
  }

  const SweepOptions& options_;
  const std::vector<SweepRun>& runs_;
  Waiter& waiter_;
  std::vector<Slot> slots_;
  std::vector<size_t> todo_;  // runs that were not finished
  size_t next_ = 0;           // of todo_
  std::vector<int> codes_;    // of the runs that ended here; 0 of the others
  bool stopping_ = false;
  const Log log_;
};

struct SweepTable {
  std::string report = "";  // empty: no run has logged anything
  bool stopped = false;     // by a signal
  std::vector<SweepResult> runs = {};
  static void visit(auto& t, auto&& f) {
    f("report", t.report);
    f("stopped", t.stopped);
    f("runs", t.runs);
  }
};

std::string write_reports(Fs& fs, const std::string& out, const std::vector<SweepResult>& ranked) {
  std::vector<std::string> folders;
  for (const SweepResult& r : ranked) {
    if (has_log(r)) folders.push_back(r.folder);
  }
  if (folders.empty()) return {};
  if (folders.size() == 1) return write_report(fs, folders.front());
  const std::string path = out + "/report.html";
  write_comparison(fs, folders, path);
  return path;
}

void print_table(const SweepTable& table, const SweepOptions& options) {
  if (options.json) return print_json(table);
  print_results(table.runs);
  if (!table.report.empty()) print_text("report  %s\n", table.report.c_str());
}

// What is left to do, and that the same command does it.
void tell_rest(const SweepTable& table, const Log& log) {
  int64_t failed = 0, open = 0;
  for (const SweepResult& r : table.runs) {
    failed += r.state == SweepState::kFailed || r.state == SweepState::kKilled;
    open += r.state != SweepState::kFinished;
  }
  if (open == 0) return;
  log.warning(std::to_string(open) + " of " + std::to_string(table.runs.size()) +
              " runs are not finished, " + std::to_string(failed) +
              " of them failed. The same command continues them and tries each failed one again");
}

// Throws one Error with the faults of all runs; AskedToStop where a signal comes meanwhile.
std::vector<SweepRun> runs_of(const SweepOptions& options, const SweepGrid& grid, Waiter& waiter,
                              SweepFacts& facts) {
  const std::optional<int64_t> sample =
      options.sample > 0 ? std::optional(options.sample) : std::nullopt;
  std::vector<SweepRun> runs;
  RunChecker checker(options.recipe);
  RunFaults faults;
  for (SweepPoint& point : grid.points(sample, options.seed)) {
    if (asks_to_stop(waiter.wait(std::chrono::steady_clock::now()))) throw AskedToStop();
    SweepRun& run = runs.emplace_back();
    run.point = std::move(point);
    run.folder = options.out + '/' + run.point.name;
    try {
      const Recipe recipe = checker.checked(run.point);
      gpus_for(recipe.run.device);  // E7101 where there is none
      run.device = recipe.run.device;
      if (runs.size() == 1) set_recipe(facts, recipe);
    } catch (const Error& error) {
      faults.add(run.point.name, error);
    }
  }
  faults.throw_if_any(runs.size());
  facts.grid = grid.axes();
  facts.sample = options.sample;
  facts.seed = options.sample > 0 ? options.seed : 0;
  return runs;
}

void run_sweep(const SweepOptions& options, Waiter& waiter, Call& call) {
  const SweepGrid grid(options.sets);
  SweepFacts facts;
  const std::vector<SweepRun> runs = runs_of(options, grid, waiter, facts);
  Fs fs;
  prepare_run_folder(fs, options.out);
  const RunLock lock(options.out);
  std::vector<std::string> folders;
  for (const SweepRun& run : runs) folders.push_back(run.folder);
  claim_folder(fs, options.out, facts, folders);
  Sweeper sweeper(options, runs, waiter);
  sweeper.go();
  SweepTable table{.stopped = sweeper.stopped()};
  for (size_t run = 0; run < runs.size(); ++run) table.runs.push_back(sweeper.result_of(run));
  rank_results(table.runs);
  table.report = write_reports(fs, options.out, table.runs);
  print_table(table, options);
  tell_rest(table, sweeper.log());
  call.code = sweeper.code();
}

void sweep(SweepOptions options, Call& call) {
  while (options.out.size() > 1 && options.out.ends_with('/')) options.out.pop_back();
  Waiter waiter;  // before any thread
  try {
    run_sweep(options, waiter, call);
  } catch (const AskedToStop&) {
    std::cerr << "asked to stop before any run had begun\n";
  }
}

}  // namespace

void add_sweep(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("sweep", "trains a recipe with several values of some keys");
  const auto options = std::make_shared<SweepOptions>();
  verb->add_option("recipe", options->recipe, "the recipe, a YAML file")->required();
  verb->add_option("--set", options->sets,
                   "path=value,value: a run for each value; with several such keys for each "
                   "combination. path=value: for all runs")
      ->type_name("PATH=VALUE,...")
      ->expected(1)
      ->take_all()
      ->required();
  verb->add_option("--out", options->out, "folder of the sweep, with a run folder for each run")
      ->required();
  CLI::Option* sample =
      verb->add_option("--sample", options->sample,
                       "so many of the combinations, drawn at random; default: all")
          ->check(CLI::Range(int64_t{1}, kMostSweepRuns));
  verb->add_option("--seed", options->seed, "seed of --sample; default: 1")->needs(sample);
  verb->add_option("--jobs", options->jobs,
                   "runs at a time, each with its part of the cores and a GPU in turn; default: 1")
      ->check(CLI::Range(1, 1024));
  verb->add_flag("--quiet", options->quiet, "log failures only");
  verb->add_flag("--json", options->json, "print the table as JSON");
  verb->footer(
      "Example: troupe sweep run.yaml --set train.optimizer.lr=1e-3,3e-3,1e-2 --out sweeps/lr\n"
      "Ctrl-C or SIGTERM saves and stops; the same command continues: finished runs are kept,\n"
      "failed ones tried again. Returns what the first failed run returned.");
  verb->callback([options, &call] { sweep(*options, call); });
}

}  // namespace troupe
