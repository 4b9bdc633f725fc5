#include "bench/control_plane/simulated_world.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <latch>
#include <thread>
#include <utility>

#include "bench/control_plane/resources.h"
#include "bench/control_plane/simulated_process.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/group_of_state.h"
#include "troupe/core/check.h"
#include "troupe/distributed/group/thread_backend.h"
#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/distributed/world/rendezvous.h"
#include "troupe/distributed/world/store_server.h"
#include "troupe/distributed/world/threads.h"
#include "troupe/distributed/world/world.h"

namespace troupe::control_plane {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStart{300'000};
constexpr int64_t kSavesOfHour = 4;
constexpr double kHour = 3600;
const Fingerprint kFingerprint = {{"model", "simulated"}};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void require_none(const std::vector<std::string>& errors) {
  if (!errors.empty()) throw Error(errors.front(), Code::kRankLost);
}

}  // namespace

std::vector<int64_t> ranks_of_host(int64_t host) {
  std::vector<int64_t> out;
  for (int64_t r = 0; r < kRanksOfHost; ++r) out.push_back(host * kRanksOfHost + r);
  return out;
}

struct SimulatedWorld::Rank {
  int64_t number = 0;
  std::shared_ptr<Tally> asked = std::make_shared<Tally>(), beats = std::make_shared<Tally>();
  std::shared_ptr<CountedStore> store = {};
  std::shared_ptr<World> world = {};
  std::unique_ptr<ParallelState> state = {};
  std::unique_ptr<Watch> watch = {};
  std::unique_ptr<RankState> tensors = {};
  std::unique_ptr<Saver> saver = {};
  Counts counted = {};  // of the last phase
  double seconds = 0;   // likewise
  Loss loss = {};
  double looked = 0;  // seconds that it took to find it

  // As a process that is killed: nothing is said to anybody.
  void end() {
    watch.reset();
    saver.reset();
    state.reset();
    world.reset();
    store.reset();
  }
};

SimulatedWorld::SimulatedWorld(const Catalog& catalog, SimulatedRun run)
    : catalog_(catalog),
      run_(std::move(run)),
      mesh_(run_.ranks, run_.mesh),
      exchange_(run_.ranks),
      threads_(thread_ranks()),
      descriptors_before_(open_descriptors()) {
  for (int64_t r = 0; r < run_.ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->number = r;
  }
}

// The server first: a watch that waits for its answer would be waited for.
SimulatedWorld::~SimulatedWorld() {
  server_.kill();
  try {
    for_all(all(), [](Rank& rank) { rank.end(); });
  } catch (const Error&) {  // no threads for it: they end one after another
  }
}

std::vector<SimulatedWorld::Rank*> SimulatedWorld::all() const {
  std::vector<Rank*> out;
  for (const auto& rank : ranks_) out.push_back(rank.get());
  return out;
}

std::vector<std::string> SimulatedWorld::for_all(const std::vector<Rank*>& ranks,
                                                 const std::function<void(Rank&)>& f) {
  std::vector<std::string> errors;
  std::mutex mutex;
  std::latch gate(1);  // all or none: one alone would wait for the others
  std::atomic<bool> begins = true;
  const auto run = [&](Rank& rank) {
    gate.wait();
    if (!begins) return;
    const auto start = Clock::now();
    try {
      f(rank);
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      errors.push_back("rank " + std::to_string(rank.number) + ": " + e.what());
    }
    rank.seconds = since(start);
  };
  std::vector<std::jthread> threads;
  threads.reserve(ranks.size());
  try {
    for (Rank* const rank : ranks) threads.emplace_back(run, std::ref(*rank));
  } catch (const std::system_error& e) {
    begins = false;
    gate.count_down();
    fail_for_thread("rank " + std::to_string(threads.size()), e);
  }
  gate.count_down();
  threads.clear();  // joins
  return errors;
}

Row SimulatedWorld::measured(const std::string& phase, const std::function<void(Rank&)>& f) {
  for (const auto& rank : ranks_) rank->asked->take();
  exchange_.take();
  reset_peak(::getpid());
  reset_peak(server_.id());
  const int64_t read = file_bytes_read();
  const std::vector<std::string> errors = for_all(all(), f);
  Row out{.phase = phase, .ranks = run_.ranks, .all = {}};
  out.files_read = file_bytes_read() - read;
  for (const auto& rank : ranks_) {
    rank->counted = rank->asked->take();
    out.all += rank->counted;
    out.most_requests = std::max(out.most_requests, rank->counted.requests);
    out.most_found = std::max(out.most_found, rank->counted.found());
    out.seconds = std::max(out.seconds, rank->seconds);
  }
  const RankExchange::Sent sent = exchange_.take();
  out.messages = sent.messages;
  out.sent = sent.bytes;
  out.keys = keys_alive(server_.address()).keys;
  out.descriptors = open_descriptors() - descriptors_before_;
  out.memory = memory_peak(::getpid());
  out.of_server = memory_peak(server_.id());
  if (!errors.empty()) {
    out.fault = errors.front();
    if (errors.size() > 1) {
      out.fault += " (and " + std::to_string(errors.size() - 1) + " other ranks)";
    }
  }
  return out;
}

void SimulatedWorld::begin(Rank& rank) {
  const SimulatedFaults& faults = run_.faults;
  const bool late = faults.late_each > 0 && rank.number % faults.late_each == 1;
  if (late) std::this_thread::sleep_for(faults.late);
  const bool slow = rank.number / kRanksOfHost == faults.slow_host;
  const Asking how{.delay = slow ? faults.slow : milliseconds(0),
                   .looks_by_three = run_.looks_by_three};
  const StoreAddress& at = server_.address();
  wait_for_server(at.host, at.port, kStart, {});
  rank.store = std::make_shared<CountedStore>(at, rank.asked, how);
  const Rendezvous met =
      rendezvous(*rank.store, {.rank = rank.number,
                               .size = run_.ranks,
                               .process = to_text(simulated_process(rank.number)),
                               .place = at.host + ':' + std::to_string(at.port),
                               .timeout = kStart,
                               .first_serves = run_.first_serves});
  // The keys of World: a prefix of the attempt, and one of the rendezvous.
  const std::string prefix = "troupe/0/" + met.name + '/';
  rank.store->set_prefix(prefix);
  auto threads = std::make_shared<Threads>();
  threads->ranks = threads_;
  threads->store = rank.store;
  LauncherEnvironment place{.rank = rank.number, .size = run_.ranks};
  place.launcher_has_store = !run_.first_serves;
  WorldOptions options;
  options.threads = std::move(threads);
  rank.world = std::make_shared<World>(place, c10::Device(c10::kCPU), options);
  std::vector<Process> processes;
  for (const std::string& text : met.processes) processes.push_back(process_of(text));
  auto beats = std::make_unique<CountedStore>(at, rank.beats, how);
  beats->set_prefix(prefix);
  rank.asked->add(rank.beats->take());  // the connection: of the start
  rank.watch = std::make_unique<Watch>(
      Watch::Self{.rank = rank.number,
                  .size = run_.ranks,
                  .pulse = std::shared_ptr<Pulse>(rank.world, &rank.world->pulse()),
                  .processes = std::move(processes),
                  .first_serves = run_.first_serves,
                  .beat = run_.beat},
      std::move(beats));
  rank.state = std::make_unique<ParallelState>(rank.world, run_.mesh);
  rank.state->require_equal("version", "simulated");
}

Row SimulatedWorld::start() {
  return measured("start", [this](Rank& rank) { begin(rank); });
}

// Before what is counted: a trainer has its tensors.
void SimulatedWorld::make_states() {
  if (ranks_[0]->tensors) return;
  require_none(for_all(all(), [this](Rank& rank) {
    TROUPE_CHECK(rank.state != nullptr, "rank", rank.number, "has not started");
    rank.tensors = std::make_unique<RankState>(catalog_, mesh_, rank.number);
    rank.tensors->write_values();
  }));
}

CheckpointGroup SimulatedWorld::group_of(Rank& rank) {
  CheckpointGroup out = checkpoint_group(*rank.state);
  out.exchange_bytes = [this, number = rank.number](const AllToAllBytes& bytes) {
    exchange_.run(number, bytes);
  };
  return out;
}

Row SimulatedWorld::save(int64_t step) {
  make_states();
  CheckpointConfig config;
  config.dir = run_.folder;
  config.keep = 1;
  config.background = false;
  if (!ranks_[0]->saver) {  // as a run does when it starts
    require_none(for_all(all(), [&](Rank& rank) {
      rank.saver =
          std::make_unique<Saver>(config, "simulated", group_of(rank), Log(), fs_, no_faults_);
      rank.saver->go_on_from(-1);
    }));
  }
  return measured("save", [step](Rank& rank) {
    const PulseScope scope(rank.world->pulse(), Phase::kSave);
    rank.saver->save(rank.tensors->named(/*to_load=*/false),
                     {.step = step, .fingerprint = kFingerprint});
    rank.saver->wait();
  });
}

Row SimulatedWorld::load() {
  make_states();
  for_all(all(), [](Rank& rank) { rank.tensors->forget_values(); });
  CheckpointConfig config;
  config.dir = run_.folder;
  return measured("load", [&](Rank& rank) {
    const PulseScope scope(rank.world->pulse(), Phase::kLoad);
    const CheckpointState state = rank.tensors->named(/*to_load=*/true);
    const auto loaded = resume(config, state, kFingerprint, group_of(rank), no_faults_);
    if (!loaded) fail(Code::kNoCheckpoint, run_.folder, "holds no step");
    const std::string wrong = rank.tensors->wrong_value();
    if (!wrong.empty()) fail(Code::kDamagedCheckpoint, wrong, "was loaded with other values");
  });
}

Row SimulatedWorld::hour(int64_t first_step, int64_t saves, milliseconds watched) {
  Row out{.phase = "hour", .ranks = run_.ranks, .all = {}};
  std::string keys;
  const double share = static_cast<double>(kSavesOfHour) / static_cast<double>(saves);
  const auto scaled = [](int64_t count, double by) -> int64_t {
    return std::llround(static_cast<double>(count) * by);
  };
  const auto add = [&](Counts counts, double by) {
    for (int64_t* const count : {&counts.requests, &counts.in_time, &counts.bytes}) {
      *count = scaled(*count, by);
    }
    for (Asked& asked : counts.uses) {
      asked = {.requests = scaled(asked.requests, by), .bytes = scaled(asked.bytes, by)};
    }
    out.all += counts;
  };
  for (int64_t i = 0; i < saves && out.fault.empty(); ++i) {
    const Row row = save(first_step + i);
    add(row.all, share);
    out.most_requests = std::max(out.most_requests, scaled(row.most_requests, kSavesOfHour));
    out.most_found = std::max(out.most_found, scaled(row.most_found, kSavesOfHour));
    out.files_read += scaled(row.files_read, share);
    out.messages += scaled(row.messages, share);
    out.seconds = std::max(out.seconds, row.seconds);
    out.memory = std::max(out.memory, row.memory);
    out.of_server = row.of_server;
    out.descriptors = row.descriptors;
    out.keys = row.keys;
    out.fault = row.fault;
    keys += (keys.empty() ? "" : ", ") + std::to_string(row.keys);
  }
  for (const auto& rank : ranks_) rank->beats->take();
  const auto start = Clock::now();
  std::this_thread::sleep_for(watched);
  const double by = kHour / since(start);
  int64_t most = 0;
  for (const auto& rank : ranks_) {
    const Counts beats = rank->beats->take();
    add(beats, by);
    most = std::max(most, scaled(beats.found(), by));
  }
  out.most_requests += most;
  out.most_found += most;
  out.note = "keys after each save: " + keys + "; " + std::to_string(saves) + " saves and " +
             std::to_string(watched.count() / 1000) +
             " s of heartbeats counted, as of four saves and an hour";
  return out;
}

SimulatedWorld::Ending SimulatedWorld::lose(const std::vector<int64_t>& lost, bool store) {
  const auto is_lost = [&](int64_t rank) { return std::ranges::count(lost, rank) > 0; };
  std::vector<Rank*> gone;
  for (const auto& rank : ranks_) {
    if (is_lost(rank->number)) gone.push_back(rank.get());
    rank->world->pulse().done(7);
    rank->world->pulse().begin(Phase::kReduce, 1, 4);
  }
  for_all(gone, [](Rank& rank) { rank.end(); });
  if (store) server_.kill();
  for (const auto& rank : ranks_) rank->beats->take();
  const auto beat = run_.beat;
  std::vector<Rank*> survivors;
  for (const auto& rank : ranks_) {
    if (!is_lost(rank->number)) survivors.push_back(rank.get());
  }
  reset_peak(::getpid());
  const std::vector<std::string> errors = for_all(survivors, [beat](Rank& rank) {
    const Waiting waiting(&rank.world->pulse());
    std::this_thread::sleep_for(beat + beat / 4);  // their next heartbeat says that they wait
    const auto start = Clock::now();
    rank.loss = rank.watch->find_lost("all_reduce of all ranks: E6001 closed");
    rank.looked = since(start);
  });
  Ending out;
  out.row = {.phase = "loss", .ranks = run_.ranks, .all = {}};
  out.survivors = std::ssize(survivors);
  for (Rank* const rank : survivors) {
    const Counts counts = rank->beats->take();
    out.row.all += counts;
    out.row.most_requests = std::max(out.row.most_requests, counts.requests);
    out.row.most_found = std::max(out.row.most_found, counts.found());
    out.row.seconds = std::max(out.row.seconds, rank->looked);
    if (rank->loss.rank < 0) {
      ++out.unknown;
    } else if (is_lost(rank->loss.rank)) {
      ++out.named;
      if (out.message.empty()) out.message = rank->loss.message;
    } else {
      ++out.wrong;
    }
  }
  if (!store) out.row.keys = keys_alive(server_.address()).keys;
  out.row.descriptors = open_descriptors() - descriptors_before_;
  out.row.memory = memory_peak(::getpid());
  out.row.of_server = store ? 0 : memory_peak(server_.id());
  if (!errors.empty()) out.row.fault = errors.front();
  out.row.note = "of " + std::to_string(out.survivors) + " survivors " + std::to_string(out.named) +
                 " name a lost rank, " + std::to_string(out.unknown) + " name none, " +
                 std::to_string(out.wrong) + " name one that lives";
  return out;
}

}  // namespace troupe::control_plane
