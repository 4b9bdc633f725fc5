// troupe train: trains, or resumes a run.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "apps/spare.h"
#include "apps/train_options.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/device/limits.h"
#include "troupe/core/device/open_files.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/file/live_line.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/stop.h"
#include "troupe/core/text/first_line.h"
#include "troupe/core/text/plain_text.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/core/text/utf8.h"
#include "troupe/distributed/dispatch/dispatchers.h"
#include "troupe/distributed/status/flight_record.h"
#include "troupe/distributed/status/process.h"
#include "troupe/distributed/world/peer_hosts.h"
#include "troupe/distributed/world/sentinel.h"
#include "troupe/distributed/world/start_needs.h"
#include "troupe/distributed/world/world.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/prove_layout.h"
#include "troupe/train/loop/trainer.h"
#include "troupe/train/machine/doctor.h"
#include "troupe/train/observe/memory_use.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/thread_limit.h"
#include "troupe/train/observe/version.h"

namespace troupe {
namespace {

// For the store of a rank 0 that ends by its sentinel: those of the others come at their own time.
constexpr std::chrono::seconds kOthersLeave{15};
constexpr std::chrono::milliseconds kWritePause{20};  // between looks at a checkpoint's write

void write_run_files(Fs& fs, const TrainOptions& options, Recipe recipe, Sources sources,
                     const Call& call, int64_t ranks) {
  if (for_one_start(recipe.checkpoint.resume)) {  // which this start has taken
    recipe.checkpoint.resume = {};
    sources.erase("checkpoint.resume");
  }
  const std::string& dir = recipe.checkpoint.dir;
  std::ostringstream resolved, environment;
  print_config(resolved, recipe, sources);
  publish_file(fs, dir + "/recipe.yaml", without_secrets(resolved.str()));
  std::string given = read_file(options.recipe.path, Code::kNoRecipe);
  for (const std::string& set : options.recipe.sets) given += "\n# --set " + set;
  publish_file(fs, dir + "/given.yaml", without_secrets(given));
  RunEnvironment here = this_environment(call.words, device_of(recipe.run.device).str());
  here.ranks = ranks;
  write_json(environment, here);
  publish_file(fs, dir + "/env.json", repaired_utf8(environment.str()) + "\n");
}

// What goes on with the run, without what of checkpoint.resume was for this start alone.
std::string command_of(const TrainOptions& options, const Recipe& recipe) {
  std::vector<std::string> sets = options.recipe.sets;
  if (for_one_start(recipe.checkpoint.resume)) {
    std::erase_if(sets,
                  [](const std::string& set) { return set.starts_with("checkpoint.resume="); });
    Sources sources;
    const Recipe left = load_recipe(options.recipe.path, sets, sources);
    if (for_one_start(left.checkpoint.resume)) sets.emplace_back("checkpoint.resume=auto");
  }
  const char* const launcher = std::getenv("TROUPE_LAUNCH");  // "troupe launch -n 2 --"
  std::string out = launcher == nullptr ? "troupe" : launcher;
  out += " train " + shell_word(options.recipe.path);
  for (const std::string& set : sets) out += " --set " + shell_word(set);
  return without_secrets(out);
}

// The same in all attempts of the launcher that this process is a child of, and in no other's;
// empty: nothing starts it again.
std::string launch_of(const LauncherEnvironment& place) {
  if (place.job.empty()) return {};
  Process launcher = this_process();
  launcher.id = ::getppid();
  return hex(hash64(place.job + to_text(launcher)));
}

void require_rows_sent(const ParallelConfig& parallel) {
  if (parallel.expert == 1 || sends_rows(parallel.dispatcher)) return;
  fail(Code::kBadValue, "parallel.dispatcher", "none leaves each token on its rank, with experts",
       "that are not its own: it times steps (troupe bench --ranks N). Train with auto");
}

// A run with its end recorded in exit.json, once the folder is ours.
class Run {
 public:
  Run(const TrainOptions& options, const Call& call, Signals& signals)
      : options_(options),
        call_(call),
        signals_(signals),
        place_(launcher_environment().value_or(LauncherEnvironment{})),
        faults_(Faults::from_environment(static_cast<int>(place_.rank))),
        fs_(disk_, faults_),
        launch_(launch_of(place_)),
        start_(start_of_this_process()) {
    start_.attempt = place_.attempt + 1;
  }

  void go() {
    recipe_ = load_recipe(options_.recipe.path, options_.recipe.sets, sources_);
    const Recipe& recipe = recipe_;
    validate(recipe, sources_);
    if (options_.print) return print_config(std::cout, recipe, sources_);
    dir_ = recipe.checkpoint.dir;
    const bool first = place_.rank == 0;
    if (first) prepare_run_folder(fs_, dir_);
    std::vector<std::shared_ptr<LogSink>> sinks;
    constexpr int64_t kLogBytes = int64_t{64} << 20;
    if (first) {
      sinks.push_back(file_sink(dir_ + "/log.txt", kLogBytes, static_cast<int>(recipe.log.keep)));
    }
    const std::string prefix =
        rank_prefix(static_cast<int>(place_.rank), static_cast<int>(place_.size));
    const Log step_log(sinks, Level::kInfo, prefix);
    const auto live = options_.quiet ? nullptr : std::make_shared<LiveStderr>();
    if (live != nullptr) sinks.push_back(live);
    // The others do what rank 0 does, and speak of what is theirs alone.
    log_ = Log(sinks, first ? Level::kInfo : Level::kWarning, prefix);
    if (restarted()) start_.launch = launch_;
    if (first && !faults_.empty()) log_.warning("TROUPE_FAULT is set: faults are made on purpose");
    tell_open_files();
    try {
      const ResolvedRun run = rendezvous();
      RunTools given = tools();
      given.steps = {live, step_log};
      trainer_ = std::make_unique<Trainer>(run, given);
    } catch (const AskedToStop&) {
      log_.warning(setup_ == nullptr ? "asked to stop before the ranks had met"
                                     : "asked to stop while data was being opened");
      return end({.state = RunState::kStopped, .rank = place_.rank, .message = "asked to stop"},
                 status());
    }
    const RunEnd how = trainer_->run();
    const std::lock_guard lock(report_mutex_);
    reported_ = true;
    const auto last = how == RunEnd::kAlreadyFinished ? last_record() : std::nullopt;
    if (last && last->state == RunState::kFinished) return;
    const bool stopped = how == RunEnd::kStopped;
    end({.state = stopped ? RunState::kStopped : RunState::kFinished,
         .message = stopped ? "stopped, with a saved step" : "done"},
        {.phase = Phase::kExit});
  }

  RunTools tools() {
    return {.log = log_,
            .fs = fs_,
            .faults = faults_,
            .signals = signals_,
            .force = options_.force,
            .restarted = !start_.launch.empty(),
            .continue_with = command_of(options_, recipe_),
            .begun = [this] { begun(); },
            .setup = setup_};
  }

  // Where the limit that this process was given is too little for its ranks.
  void tell_open_files() const {
    if (place_.size == 1) return;
    const StartNeeds needs = start_needs(place_.size);
    const bool serves = place_.rank == 0 && !place_.launcher_has_store;
    const int64_t need = serves ? needs.files_of_first : needs.files;
    const OpenFiles& files = open_files();
    if (files.given < 0 || files.given >= need) return;
    const Finding found = judge_files_of(
        "rank " + std::to_string(place_.rank) + " of " + std::to_string(place_.size), files, need);
    const std::string text = found.what + ": " + found.found;
    if (found.verdict == Finding::kOk) return log_.info(text);
    log_.warning(text + ". " + found.cure);
  }

  // Meets all ranks of the run, which have one recipe, and makes setup_.
  ResolvedRun rendezvous() {
    if (place_.size == 1) {
      require_one_rank(recipe_.parallel);
      setup_ = std::make_shared<ParallelSetup>();
      return resolve_alone(recipe_, available_memory(recipe_));
    }
    PeerHosts::of_environment();  // E2005 here, and not while ranks meet
    require_rows_sent(recipe_.parallel);
    const auto whole = [](Duration d) { return std::chrono::milliseconds(d.ns / 1'000'000); };
    const c10::Device device = device_of_rank(recipe_, place_.local_rank);
    const bool gloo = recipe_.parallel.backend == CommBackend::kGloo;
    world_ = std::make_shared<World>(place_, device,
                                     WorldOptions{.start_timeout = whole(recipe_.run.start_timeout),
                                                  .hang_timeout = whole(recipe_.run.hang_timeout),
                                                  .staged = gloo && device.is_cuda(),
                                                  .check = [this] {
                                                    if (signals_.stop() != 0) throw AskedToStop();
                                                  }});
    if (!world_->exposure().empty()) log_.warning(world_->exposure());
    std::ostringstream recipe;
    print_config(recipe, recipe_, {});
    // Before there are groups, which ranks of different layouts would wait for.
    require_equal(*world_, "version", version() + ' ' + commit());
    require_equal_lines(*world_, "recipe", recipe.str());
    const ResolvedRun run = resolve(recipe_, *world_);
    const LayoutProof proof =
        prove_layout(run, run.parallel, run.plan.batch, run.plan.micro_batch, place_.size);
    if (proof.proven == 0 && place_.rank == 0) log_.info("step of " + to_text(proof));
    setup_ = std::make_shared<ParallelSetup>(world_, run);
    return run;
  }

  void begun() {
    if (world_ != nullptr) {
      sentinel_ = std::make_unique<Sentinel>(
          Sentinel::Self{.pulse = world_->pulse(),
                         .peer_ended = [this] { return world_->peer_ended(); },
                         .peer_lost = [this] { return world_->peer_lost(); },
                         .writes = [this] { return trainer_->writes_checkpoint(); },
                         .end = [this](std::chrono::seconds unmoved) { end_stuck(unmoved); }});
    }
    if (place_.rank != 0) return;
    ours_ = true;
    start_.launch = launch_;
    write_exit(fs_, dir_,
               {.state = RunState::kRunning,
                .code = -1,
                .step = trainer_->state().done.steps,
                .resumable = !trainer_->newest_checkpoint().empty(),
                .checkpoint = trainer_->newest_checkpoint(),
                .start = start_},
               "", log_);
    exit_room_.emplace(dir_);
    write_run_files(fs_, options_, recipe_, sources_, call_, place_.size);
  }

  // Where it happened, and what of the recipe takes the memory.
  Error out_of_memory(const std::exception& error) const {
    std::string what = first_line(error.what()) + limits_behind(ENOMEM);
    const double available = available_memory(recipe_);
    if (available > 0) {
      what += ". Forecast: " + judge_memory(recipe_, runs_on_gpu(recipe_), available).line;
    }
    return Error(to_text(status()) + ": " + to_text(Code::kTooLarge) + " out of memory: " + what,
                 Code::kTooLarge);
  }

  // Notes why the run ends, for the other ranks too; returns what this rank reports.
  Error failed(const Error& error) {
    const std::lock_guard lock(report_mutex_);
    reported_ = true;
    return note_failure(error);
  }
  // A GPU may still be in a collective with the rank that is lost, and the destructors of
  // communicators and tensors wait for it.
  void exit_if_peer_is_lost(const Error& reported) {
    if (world_ == nullptr || trainer_ == nullptr || !runs_on_gpu(recipe_)) return;
    if (reported.exit_class() != ExitClass::kPeer) return;
    while (trainer_->writes_checkpoint()) std::this_thread::sleep_for(kWritePause);
    exit_now(reported);
  }
  void failed(const std::exception& error) {
    const std::lock_guard lock(report_mutex_);
    reported_ = true;
    if (world_ != nullptr) {
      world_->pulse().set_ending();
      world_->last_words(error.what(), Code::kBrokenContract);
    }
    end({.code = static_cast<int>(ExitClass::kBug), .rank = place_.rank, .message = error.what()},
        status());
  }

 private:
  // In the sentinel's thread. The training thread is in a collective that does not end, so that no
  // destructor may be waited for; should it come out meanwhile, it waits here for the process's
  // end.
  void end_stuck(std::chrono::seconds unmoved) {
    const std::lock_guard lock(report_mutex_);
    if (reported_) return;
    const Error reported =
        note_failure(Error("a step that makes no progress: " + to_text(Code::kRankLost) +
                               " it has not moved for " + std::to_string(unmoved.count()) + " s",
                           Code::kRankLost));
    exit_now(reported);
  }

  [[noreturn]] void exit_now(const Error& reported) {
    std::cerr << plain_text(without_secrets(reported.what())) << '\n';
    world_->leave(kOthersLeave);
    std::fflush(nullptr);
    ::_exit(static_cast<int>(reported.exit_class()));
  }

  Error note_failure(const Error& error) {
    if (world_ != nullptr) world_->pulse().set_ending();
    faults_.at("report");
    ExitRecord record{.code = static_cast<int>(error.exit_class()),
                      .error = to_text(error.code()),
                      .rank = place_.rank,
                      .message = error.what()};
    if (world_ == nullptr || error.code() != Code::kRankLost) {
      if (world_ != nullptr) world_->last_words(error.what(), error.code());
      end(record, status());
      return error;
    }
    const Loss loss = world_->find_lost(error.what());
    // The run ends by its cause, this rank because it lost a peer.
    record.code = static_cast<int>(exit_class(loss.cause));
    record.error = to_text(loss.cause);
    record.message = loss.message;
    if (loss.rank >= 0) record.rank = loss.rank;
    end(record, loss.rank >= 0 ? loss.status : status());
    return Error(loss.brief, loss.code);
  }

  RankStatus status() const {
    return setup_ == nullptr ? RankStatus{} : setup_->state.world().pulse().now();
  }

  std::optional<ExitRecord> last_record() const {
    try {
      return read_exit(dir_);
    } catch (const Error& error) {
      log_.warning(error.what());
      return {};
    }
  }

  // An attempt of this launcher had the run folder before, and did what checkpoint.resume says.
  bool restarted() const {
    if (place_.rank != 0 || place_.attempt == 0 || launch_.empty()) return false;
    const std::optional<ExitRecord> last = last_record();
    return last && last->start.launch == launch_;
  }

  void end(ExitRecord record, const RankStatus& at) {
    if (record.code != 0) record.state = RunState::kFailed;
    record.start = start_;
    record.phase = phase_text(at);
    // A folder that was moved while this run trained is at this name no more.
    const bool lost = record.error == to_text(Code::kFolderInUse);
    ours_ = ours_ && !lost;
    // A start that failed had the folder not yet for its own: it may be another's, that runs.
    const bool lead = place_.rank == 0 && !dir_.empty() && !lost;
    const auto lock = ours_ || !lead ? nullptr : RunLock::if_free(dir_);
    if (trainer_ != nullptr) {
      record.step = record.rank == place_.rank ? trainer_->state().done.steps : at.done;
      record.checkpoint = trainer_->newest_checkpoint();
      record.resumable = !record.checkpoint.empty();
    } else if (lock != nullptr) {
      keep_earlier(record);
    }
    if (record.code != 0 && !lost) keep_flight();
    const char* const torchrun = std::getenv("TORCHELASTIC_ERROR_FILE");
    write_exit(fs_, ours_ || lock != nullptr ? dir_ : "", record,
               torchrun == nullptr ? "" : torchrun, log_, exit_room_ ? &*exit_room_ : nullptr);
  }

  // Of a start that failed before it had the run: what the run had before is still true, and steps
  // that are gone are missed by the next start too.
  void keep_earlier(ExitRecord& record) const {
    if (const std::optional<ExitRecord> last = last_record()) {
      record.step = last->step;
      record.checkpoint = last->checkpoint;
    }
    const std::vector<int64_t> steps = steps_in(dir_);
    if (!steps.empty()) record.checkpoint = dir_ + '/' + step_name(steps.back());
    record.resumable = !steps.empty() && record.code != static_cast<int>(ExitClass::kCheckpoint);
  }

  // A launcher that shares the pulses writes what all did.
  void keep_flight() {
    if (world_ == nullptr || trainer_ == nullptr || world_->launcher_sees_pulses()) return;
    write_flight(fs_, dir_ + "/flight-rank-" + std::to_string(place_.rank) + ".json",
                 flight_record({&world_->pulse()}, place_.rank), log_);
  }

  const TrainOptions& options_;
  const Call& call_;
  Signals& signals_;
  const LauncherEnvironment place_;
  const Faults faults_;
  Fs disk_;
  FaultyFs fs_;
  const std::string launch_;
  StartRecord start_;  // its `launch`: once an attempt has had the folder
  Recipe recipe_;
  Sources sources_;
  std::string dir_;
  Log log_;
  std::shared_ptr<World> world_;                // absent: this rank alone
  std::shared_ptr<const ParallelSetup> setup_;  // absent: the ranks have not met
  std::unique_ptr<Trainer> trainer_;
  bool ours_ = false;
  std::optional<ExitRoom> exit_room_;  // once the folder is ours
  std::mutex report_mutex_;  // how the run ends: by the training thread, or by the sentinel's
  bool reported_ = false;
  std::unique_ptr<Sentinel> sentinel_;  // absent: this rank alone, or not begun
};

void train(const TrainOptions& options, Call& call) {
  keep_freed_memory();
  wait_if_spare(options);
  Signals signals;  // before any thread
  Run run(options, call, signals);
  try {
    run.go();
  } catch (const Error& error) {
    const Error reported = run.failed(error);
    call.code = static_cast<int>(reported.exit_class());
    run.exit_if_peer_is_lost(reported);
    throw reported;
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      const Error reported = run.failed(run.out_of_memory(error));
      call.code = static_cast<int>(reported.exit_class());
      throw reported;
    }
    if (const auto refused = refused_thread(error)) {
      const Error reported = run.failed(*refused);
      call.code = static_cast<int>(reported.exit_class());
      throw reported;
    }
    run.failed(error);
    throw;
  }
}

}  // namespace

void add_train(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("train", "trains a model, or resumes a run");
  const auto options = std::make_shared<TrainOptions>();
  options->add_to(*verb);
  verb->footer(
      "Example: troupe train recipes/quickstart.yaml --set train.steps=100\n"
      "Ctrl-C or SIGTERM saves and stops; the same command resumes. SIGUSR1 saves now.");
  verb->callback([options, &call] { train(*options, call); });
}

}  // namespace troupe
