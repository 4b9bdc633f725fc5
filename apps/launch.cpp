// troupe launch: the ranks of a run on this machine, started, watched and, where that helps,
// started again; or another program, where this machine passes its check.
#include <CLI/Error.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/join_check.h"
#include "apps/local_ranks.h"
#include "apps/print.h"
#include "apps/spare.h"
#include "apps/spares.h"
#include "apps/torch_lines.h"
#include "apps/train_options.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/live_line.h"
#include "troupe/core/file/log.h"
#include "troupe/distributed/status/flight_record.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/distributed/world/peer_hosts.h"
#include "troupe/distributed/world/store_server.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kSameEnds = 3;  // that no newer step came between: the next will be the same
constexpr int kStoreFiles = 13, kRankFiles = 3;  // open at the launcher, and for each rank
constexpr const char* kStopped = "asked to stop before the run had begun";

struct LaunchOptions {
  int ranks = 0, min_ranks = 0, max_restarts = 0, port = 0;  // min_ranks 0: as `ranks`
  int spares = 0;
  bool quiet = false, json = false;
  JoinCheck check;
  std::vector<std::string> command;
};

std::string meaning(int code) {
  switch (code) {
    case 2: return "usage or recipe";
    case 3: return "data";
    case 4: return "checkpoint";
    case 5: return "numbers that are not finite";
    case 6: return "lost peer";
    case 7: return "memory, disk or device";
    case 70: return "a fault of the program";
    case 128 + SIGINT:
    case 128 + SIGTERM: return "asked twice to stop";
    default: return "no exit class";
  }
}

Log log_of(const LaunchOptions& options) {
  return Log({std::make_shared<LiveStderr>()}, options.quiet ? Level::kWarning : Level::kInfo,
             "launch: ");
}

double seconds_between(SteadyTime a, SteadyTime b) {
  return std::chrono::duration<double>(b - a).count();
}

// How all ranks of one attempt ended, in the order that they did.
struct AttemptEnd {
  std::vector<RankEnd> ranks;
  SteadyTime begin;
  bool asked_to_stop = false;

  // The rank whose end made the others fail: those that lost a peer end with 6, by themselves or
  // because they are asked to, and before it may have done so.
  const RankEnd& cause() const {
    const auto first = [this](auto&& is) { return std::ranges::find_if(ranks, is); };
    const auto own = first([](const RankEnd& e) {
      return !e.forced && (e.signal != 0 || (e.code != 0 && e.code != 6));
    });
    if (own != ranks.end()) return *own;
    const auto stopped = first([](const RankEnd& e) { return e.stood_still; });
    if (stopped != ranks.end()) return *stopped;
    const auto bad = first([](const RankEnd& e) { return e.code != 0; });
    if (bad == ranks.end()) return ranks.front();
    const auto left = first([&](const RankEnd& e) {
      return e.code == 0 && e.status.phase != Phase::kExit && e.when <= bad->when;
    });
    if (left != ranks.end()) return *left;
    const auto hung = first([](const RankEnd& e) { return e.forced; });
    return hung != ranks.end() ? *hung : *bad;
  }
  // Stopped before they handled signals: nothing had begun that could be lost.
  bool obeyed() const {
    const auto by_signal = [](const RankEnd& e) {
      return e.signal == SIGTERM || e.signal == SIGINT;
    };
    const auto fine = [&](const RankEnd& e) {
      return by_signal(e) || e.code == 0 || e.code == static_cast<int>(ExitClass::kPeer);
    };
    return asked_to_stop && std::ranges::any_of(ranks, by_signal) &&
           std::ranges::all_of(ranks, fine);
  }
  int code() const {
    if (std::ranges::all_of(ranks, [](const RankEnd& e) { return e.code == 0; })) return 0;
    if (obeyed()) return 0;
    const int code = cause().code;
    return code == 0 ? static_cast<int>(ExitClass::kPeer) : code;  // it left the others
  }
  // Equal for attempts that ended alike: by the same rank, in the same way, at the same place.
  std::string likeness() const {
    const RankEnd& e = cause();
    std::string out = std::to_string(e.rank);
    for (const int64_t part : {int64_t{e.code}, int64_t{e.signal}, e.status.done,
                               static_cast<int64_t>(e.status.phase)}) {
      out.append(" ").append(std::to_string(part));
    }
    return out;
  }
  // The cause, with where it was; then who had to be killed besides.
  std::string description() const {
    const RankEnd& e = cause();
    std::string out = "rank " + std::to_string(e.rank) + " of " + std::to_string(ranks.size());
    if (e.forced) {
      out += how_it_hung(e);
    } else if (e.signal != 0) {
      out.append(" was ended by SIG").append(::sigabbrev_np(e.signal));
      if (e.signal == SIGKILL) out += " (by somebody, or by the system for want of memory)";
    } else if (e.code == 0) {
      out += " ended with 0 and left the others";
    } else {
      out.append(" ended with ").append(std::to_string(e.code));
      out.append(" (").append(meaning(e.code)).append(")");
    }
    out += " in " + to_text(e.status) + ", " + fixed(seconds_between(begin, e.when), 1) +
           " s after the start; all were down " +
           fixed(seconds_between(e.when, ranks.back().when), 1) + " s later";
    for (const RankEnd& other : ranks) {
      if (!other.forced || &other == &e) continue;
      out += ". Rank " + std::to_string(other.rank) + how_it_hung(other);
    }
    return out;
  }

 private:
  static std::string how_it_hung(const RankEnd& e) {
    return e.stood_still ? " stood still (SIGSTOP) and was killed" : " hung and was killed";
  }
};

// Another attempt may do better: a peer was lost, a process killed, the program at fault. What the
// recipe, the data, a checkpoint, the numbers or the machine's size are to blame for stays as it
// is.
bool may_pass(const RankEnd& cause, int code) {
  return cause.signal != 0 || code == static_cast<int>(ExitClass::kPeer) ||
         code == static_cast<int>(ExitClass::kBug);
}

// A rank that others have left, all having done their work. One that is in a step notices that by
// itself, and a save takes its time: of those, only one that is stopped hangs.
bool hangs_at_the_end(const RankStatus& status, bool stopped, std::chrono::nanoseconds silence) {
  const bool works = Phase::kBatch <= status.phase && status.phase < Phase::kExit;
  return (stopped || !works) && steady_now() - status.since >= silence.count();
}

// Waits until all have ended. Once one has failed, the others, which lose it, have 5 s to notice
// it and 2 more after SIGTERM; one that has noticed has a minute to report it, however busy the
// machine is. Those that are stopped take no SIGTERM and are killed as soon as nobody else is left.
// Once one has ended well, those that do not end within `silence` are killed. Signals to this
// process are passed on. `tend` is called as long as none has ended, whenever something may have
// changed, and soon again where it returns true.
AttemptEnd watch(LocalRanks& ranks, Waiter& waiter, Pulses& pulses,
                 std::chrono::nanoseconds silence, const std::function<bool()>& tend) {
  AttemptEnd out{.ranks = {}, .begin = steady_clock::now()};
  std::optional<SteadyTime> next, last;
  bool terminated = false;
  while (ranks.running()) {
    const SteadyTime soon = steady_clock::now() + 200ms;
    std::optional<SteadyTime> until;
    if (!out.ranks.empty()) until = next ? std::min(*next, soon) : soon;
    if (out.ranks.empty() && tend()) until = soon;
    const int signal = waiter.wait(until);
    for (RankEnd& end : ranks.reap()) {
      Pulse& pulse = pulses.of(end.rank);
      end.status = pulse.now();
      pulse.set_ended(end.signal != 0 || end.code != static_cast<int>(ExitClass::kPeer));
      // A rank that waits at the rendezvous gets no notice; a second is for its own last message.
      if (end.code != 0 && !next) {
        next = end.when + (end.status.phase == Phase::kStart ? 1s : 5s);
        last = end.when + 60s;
      }
      out.ranks.push_back(end);
    }
    if (signal != 0 && signal != SIGCHLD) {
      out.asked_to_stop |= signal == SIGTERM || signal == SIGINT;
      ranks.send(signal);
      if (ranks.all_stand_still()) ranks.send(SIGCONT);  // so that they take it
    }
    if (!next) {
      if (out.ranks.empty()) continue;
      const SteadyTime since = out.ranks.back().when;
      ranks.force(SIGKILL, [&](int rank) {
        return steady_clock::now() >= since + silence &&
               hangs_at_the_end(pulses.of(rank).now(), ranks.stands_still(rank), silence);
      });
      continue;
    }
    if (ranks.all_stand_still()) {
      ranks.force(SIGKILL);
      continue;
    }
    const SteadyTime now = steady_clock::now();
    if (now < *next) continue;
    ranks.force(terminated ? SIGKILL : SIGTERM,
                [&](int rank) { return now >= *last || !pulses.of(rank).ending(); });
    terminated = true;
    next = *next + 2s;
  }
  return out;
}

// What --json prints: how each attempt ended, the last one at the end.
struct LaunchReport {
  struct Attempt {
    int64_t ranks = 0, spares = 0, code = 0;  // spares: ranks that had been waiting
    double seconds = 0;
    std::string end = "";  // "done", "stopped", or which rank ended how
    static void visit(auto& a, auto&& f) {
      f("ranks", a.ranks);
      f("spares", a.spares);
      f("code", a.code);
      f("seconds", a.seconds);
      f("end", a.end);
    }
  };
  std::string run = "";  // its folder
  int64_t code = 0;
  int64_t step = 0;  // of the newest checkpoint
  std::vector<Attempt> attempts = {};
  static void visit(auto& r, auto&& f) {
    f("run", r.run);
    f("code", r.code);
    f("step", r.step);
    f("attempts", r.attempts);
  }
};

class Launcher {
 public:
  // `fits`: whether so many ranks can hold the run. Where no run is begun, `recipe` is empty.
  Launcher(const LaunchOptions& options, std::vector<std::string> words, const Recipe& recipe,
           std::function<bool(int ranks)> fits)
      : options_(options),
        words_(std::move(words)),
        run_(recipe.checkpoint.dir),
        silence_(recipe.run.hang_timeout.ns),
        fits_(std::move(fits)),
        devices_(static_cast<size_t>(options.ranks)),
        store_(options.port),
        log_(log_of(options)),
        spares_(words_, options.spares, log_) {
    std::iota(devices_.begin(), devices_.end(), 0);
    pulses_.emplace(options.ranks);
  }

  int go() {
    int64_t since = -1;             // the newest step when the attempts last got on
    std::vector<std::string> ends;  // of the attempts since
    for (int attempt = 0;; ++attempt) {
      const auto before = exit_file();
      pulses_->clear();  // before any rank is there
      const std::vector<pid_t> waited = spares_.take(attempt);
      const int64_t spares = std::ranges::count_if(waited, [](pid_t pid) { return pid > 0; });
      log_.info("attempt " + std::to_string(attempt + 1) + " of " +
                std::to_string(options_.max_restarts + 1) + ": " + std::to_string(ranks()) +
                " ranks" + (spares > 0 ? " (spares: " + std::to_string(spares) + ")" : "") +
                ", with their store at port " + std::to_string(store_.port()));
      const AttemptEnd end = once(attempt, waited);
      const int code = end.code();
      attempts_.push_back({.ranks = ranks(),
                           .spares = spares,
                           .code = code,
                           .seconds = seconds_between(end.begin, steady_clock::now()),
                           .end = code != 0           ? end.description()
                                  : end.asked_to_stop ? "stopped"
                                                      : "done"});
      if (code == 0) {
        if (end.obeyed()) log_.info(kStopped);
      } else {
        log_.error(end.description());
      }
      if (exit_file() == before ? code != 0 : recorded_code() != code) {
        write_exit_for_all(end, attempt);
      }
      if (code == 0) return 0;
      keep_flight();
      if (end.asked_to_stop || !may_pass(end.cause(), code) || attempt == options_.max_restarts) {
        return code;
      }
      const int64_t step = newest_step();
      if (std::exchange(since, step) != step) ends.clear();
      ends.push_back(end.likeness());
      if (std::ranges::count(ends, ends.back()) < kSameEnds) continue;
      const std::string stuck = "no progress since step " + std::to_string(step) + ", and " +
                                std::to_string(kSameEnds) + " times the same end: ";
      if (!leave_out(end.cause().rank)) {
        log_.error(stuck + "it is not tried again");
        return code;
      }
      log_.warning(stuck + "on with " + std::to_string(ranks()) + " ranks, without rank " +
                   std::to_string(end.cause().rank));
      ends.clear();
    }
  }

  LaunchReport report() const {  // after go()
    return {.run = run_,
            .code = attempts_.back().code,
            .step = run_.empty() ? 0 : newest_step(),
            .attempts = attempts_};
  }

 private:
  int ranks() const { return static_cast<int>(devices_.size()); }

  // The device of a rank that fails again, and as many of the last as it takes to fit.
  bool leave_out(int rank) {
    const int least = options_.min_ranks == 0 ? options_.ranks : options_.min_ranks;
    int fewer = ranks() - 1;
    while (fewer >= least && !fits_(fewer)) --fewer;
    if (fewer < least) return false;
    devices_.erase(devices_.begin() + rank);
    devices_.resize(static_cast<size_t>(fewer));
    pulses_.emplace(fewer);
    spares_.end();  // they have the environment of other ranks
    return true;
  }

  AttemptEnd once(int attempt, const std::vector<pid_t>& waited) {
    std::vector<Variables> environments;
    for (int rank = 0; rank < ranks(); ++rank) environments.push_back(variables(rank, attempt));
    LocalRanks started(words_, environments, waited);
    std::optional<int64_t> begun;  // with so many steps done
    return watch(started, waiter_, *pulses_, silence_, [&] {
      spares_.reap();
      if (!spares_.missing()) return false;
      if (!has_done_a_step(begun)) return true;
      spares_.fill(environments);
      return false;
    });
  }

  // Spares are started beside a run that goes on: before its first step they would take processors
  // from ranks that start, and GPU memory from those that look how much of it is free.
  bool has_done_a_step(std::optional<int64_t>& begun) {
    const RankStatus first = pulses_->of(0).now();
    if (first.phase < Phase::kBatch) return false;
    if (!begun) begun = first.done;
    return first.done > *begun;
  }

  Variables variables(int rank, int attempt) const {
    const std::string all = std::to_string(ranks()), own = std::to_string(rank);
    Variables out = {{"TROUPE_LAUNCH", command()},
                     {kPulsesVariable, pulses_->variable()},
                     {"RANK", own},
                     {"WORLD_SIZE", all},
                     {"LOCAL_RANK", std::to_string(devices_[static_cast<size_t>(rank)])},
                     {"LOCAL_WORLD_SIZE", all},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", std::to_string(store_.port())},
                     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                     {"TROUPE_TOKEN", token_},
                     {kAttemptVariable, std::to_string(attempt)}};
    const int64_t threads = std::max<int64_t>(host_cores() / ranks(), 1);
    // NVLink multicast is off: where a machine does not grant it, groups fail at their start.
    const Variables unless_set = {{"OMP_NUM_THREADS", std::to_string(threads)},
                                  {"NCCL_NVLS_ENABLE", "0"},
                                  {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
                                  {"NVSHMEM_DISABLE_NVLS", "1"}};
    for (const auto& [name, value] : unless_set) {
      if (std::getenv(name.c_str()) == nullptr) out.emplace_back(name, value);
    }
    return out;
  }

  // What goes on with the run, up to what follows "--".
  std::string command() const {
    std::string out = "troupe launch -n " + std::to_string(options_.ranks);
    const int restarts = options_.max_restarts;
    if (restarts > 0) out += " --max-restarts " + std::to_string(restarts);
    if (options_.min_ranks > 0) out += " --min-ranks " + std::to_string(options_.min_ranks);
    if (options_.spares > 0) out += " --spares " + std::to_string(options_.spares);
    return out + options_.check.words() + " --";
  }

  // Which exit.json there is: another one is another file.
  std::pair<ino_t, time_t> exit_file() const {
    struct stat file {};
    if (::stat((run_ + "/exit.json").c_str(), &file) != 0) return {};
    return {file.st_ino, file.st_mtime};
  }

  std::optional<ExitRecord> last_record() const {
    if (run_.empty()) return {};
    try {
      return read_exit(run_);
    } catch (const Error&) {
      return {};
    }
  }

  // The exit code in exit.json; -1 if there is none, as of a rank 0 that could not tell its end.
  int64_t recorded_code() const {
    const std::optional<ExitRecord> last = last_record();
    return last ? last->code : -1;
  }

  // In the place of rank 0, which could not, or ended otherwise than the run did; not in a folder
  // that another run has, or that is none.
  void write_exit_for_all(const AttemptEnd& end, int attempt) {
    const auto lock = run_.empty() ? nullptr : RunLock::if_free(run_);
    if (lock == nullptr) return;
    const RankEnd& cause = end.cause();
    const int code = end.code();
    const int64_t newest = newest_step();
    const RunState well = end.asked_to_stop ? RunState::kStopped : RunState::kFinished;
    ExitRecord record{.state = code == 0 ? well : RunState::kFailed,
                      .code = code,
                      .error = code == static_cast<int>(ExitClass::kPeer)
                                   ? to_text(cause.forced ? Code::kRankHung : Code::kRankLost)
                                   : "",
                      .rank = cause.rank,
                      .step = cause.status.done,
                      .phase = phase_text(cause.status),
                      .message = code != 0      ? end.description()
                                 : end.obeyed() ? kStopped
                                                : "done",
                      .resumable = newest > 0};
    if (const std::optional<ExitRecord> last = last_record()) {
      record.start = last->start;
      record.checkpoint = last->checkpoint;
      if (cause.status.done == 0) record.step = last->step;  // it had loaded nothing yet
    }
    record.start.attempt = attempt + 1;
    if (newest > 0) record.checkpoint = run_ + '/' + step_name(newest);
    Fs disk;
    write_exit(disk, run_, record, "", log_);
  }

  // What all ranks did last, also those that could tell nobody.
  void keep_flight() {
    if (pulses_->of(0).now().phase < Phase::kBatch) return;
    std::vector<const Pulse*> all;
    for (int rank = 0; rank < ranks(); ++rank) all.push_back(&pulses_->of(rank));
    Fs disk;
    const std::string path = run_ + "/flight.json";
    write_flight(disk, path, flight_record(all), log_);
    log_.info("what each rank did last: " + path);
  }

  int64_t newest_step() const {
    const std::vector<int64_t> steps = steps_in(run_);
    return steps.empty() ? 0 : steps.back();
  }

  const LaunchOptions& options_;
  const std::vector<std::string> words_;
  const std::string run_;
  const std::chrono::nanoseconds silence_;
  const std::function<bool(int)> fits_;
  std::vector<int> devices_;  // of each rank
  std::vector<LaunchReport::Attempt> attempts_;
  std::optional<Pulses> pulses_;
  Waiter waiter_;  // before the store's threads
  StoreServer store_;
  const std::string token_ = new_run_id() + new_run_id();
  const Log log_;
  Spares spares_;
};

// What the ranks would say, said once: a command line or a recipe that cannot be.
TrainOptions train_options(const std::vector<std::string>& words) {
  if (words.empty() || words.front() != "train") {
    throw Error("launch: " + to_text(Code::kBadValue) +
                    " only train runs on several ranks: troupe launch -n 2 -- train recipe.yaml" +
                    (words.empty() ? "" : "; run \"" + words.front() + "\" as one process"),
                Code::kBadValue);
  }
  TrainOptions options;
  CLI::App train("", "train");
  options.add_to(train);
  train.parse(std::vector<std::string>(words.rbegin(), words.rend() - 1));
  return options;
}

// Becomes that program, with this process's number, environment and files.
[[noreturn]] void become(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  fail(Code::kBadValue, words.front(), "cannot be started:", std::strerror(errno));
}

// Without ranks of its own: another program, which starts them, on a machine that is fit.
void launch_program(const LaunchOptions& options, std::vector<std::string> words) {
  if (!options.check.wanted || words.empty()) {
    fail(Code::kBadValue, "--ranks",
         "is missing: say how many processes this machine runs, such as -n 4. Only with "
         "--check-machine a program may follow \"--\" that starts them, such as torchrun");
  }
  options.check.require_fit(".", /*gpus=*/true, log_of(options));
  become(std::move(words));
}

int run_ranks(const LaunchOptions& options, const std::vector<std::string>& words,
              const Recipe& recipe, const std::function<bool(int)>& fits) {
  // PyTorch's store tries again for minutes where it is refused one.
  require_open_files(kStoreFiles + kRankFiles * options.ranks + options.spares);
  const TorchLines lines(log_of(options));
  Launcher launcher(options, words, recipe, fits);
  const int code = launcher.go();
  if (options.json) print_json(launcher.report());
  return code;
}

// Spares wait for the place of one rank each, after a restart.
void require_use_of_spares(const LaunchOptions& options, bool trains) {
  if (options.spares == 0) return;
  if (!trains || options.ranks == 0) {
    fail(Code::kBadValue, "--spares", "is for ranks of train: give -n and train after \"--\"");
  }
  if (options.max_restarts == 0) {
    fail(Code::kBadValue, "--spares", options.spares,
         "would never be used, because --max-restarts is 0. Give it too, such as --max-restarts 3");
  }
  if (options.spares > options.ranks) {
    fail(Code::kBadValue, "--spares", options.spares, "is larger than the", options.ranks,
         "of --ranks: each waits for the place of one rank");
  }
}

void launch(const LaunchOptions& options, Call& call) {
  PeerHosts::of_environment();  // E2005 here, and not while ranks meet
  if (options.min_ranks > options.ranks) {
    fail(Code::kBadValue, "--min-ranks", options.min_ranks, "is larger than the", options.ranks,
         "of --ranks");
  }
  const auto dashes = std::ranges::find(call.words, "--");
  const std::vector<std::string> words(std::min(dashes + 1, call.words.end()), call.words.end());
  require_use_of_spares(options, !words.empty() && words[0] == "train");
  if (options.ranks == 0) launch_program(options, words);
  const auto check = [&options](const std::string& folder, bool gpus) {
    if (options.check.wanted) options.check.require_fit(folder, gpus, log_of(options));
  };
  if (words.size() > 1 && words[0] == "bench" && words[1] == "machine") {
    check(".", /*gpus=*/true);
    call.code = run_ranks(options, words, Recipe(), [](int) { return true; });
    return;
  }
  const TrainOptions train = train_options(words);
  Sources sources;
  const Recipe recipe = load_recipe(train.recipe.path, train.recipe.sets, sources);
  validate(recipe, sources);
  if (train.print) return print_config(std::cout, recipe, sources);
  const auto fits = [&recipe](int ranks) {
    return layout_faults(recipe.parallel, needs_of(recipe, ranks, ranks)).empty();
  };
  check(recipe.checkpoint.dir, recipe.run.device != DeviceKind::kCpu);
  call.code = run_ranks(options, words, recipe, fits);
}

}  // namespace

void add_launch(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("launch", "trains with several processes on this machine");
  const auto options = std::make_shared<LaunchOptions>();
  verb->add_option("-n,--ranks", options->ranks, "number of processes, one per GPU")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--max-restarts", options->max_restarts,
                   "restarts from the newest checkpoint after a lost rank")
      ->check(CLI::Range(0, 1'000'000));
  verb->add_option("--min-ranks", options->min_ranks,
                   "after three equal failures continue without the failed rank, down to this "
                   "many ranks; default: -n")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--spares", options->spares,
                   "so many processes wait, loaded and with their device open, for the places of "
                   "the first ranks after a restart; as many as ranks for the shortest restart")
      ->check(CLI::Range(0, 1024).description("0..1024"));
  verb->add_option("--port", options->port, "port of the rendezvous; default: any free port")
      ->check(CLI::Range(1, 65535));
  verb->add_flag("--quiet", options->quiet, "log failures only");
  verb->add_flag("--json", options->json,
                 "at the end print one line of JSON: how each attempt ended");
  options->check.add_to(*verb);
  verb->add_option("command", options->command,
                   "after \"--\": train with its arguments, or bench machine; without -n any "
                   "program");
  verb->footer(
      "Example: troupe launch -n 4 --max-restarts 3 -- train recipes/quickstart.yaml\n"
      "Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 go to all ranks. Returns what the rank that failed "
      "first returned, 6 if a signal ended it.");
  verb->callback([options, &call] { launch(*options, call); });
}

}  // namespace troupe
