#include "troupe/distributed/world/world.h"

// As torch's own build sets them: without, its headers are empty.
#define USE_C10D_GLOO

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/first_line.h"
#include "troupe/distributed/group/echo_backend.h"
#include "troupe/distributed/group/group_backend.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/group/staged_backend.h"
#include "troupe/distributed/group/thread_backend.h"
#include "troupe/distributed/world/all_gather_texts.h"
#include "troupe/distributed/world/rendezvous.h"
#include "troupe/distributed/world/store_key.h"
#include "troupe/distributed/world/store_server.h"
#include "troupe/distributed/world/tcp_key_value_store.h"
#include "troupe/distributed/world/threads.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLeaveTime{2000}, kLeavePause{10}, kEndTime{1000};
constexpr Milliseconds kLeastSilence{10'000};  // ten beats: a busy machine may lose some

// A connection of its own: what waits over one lets nobody else ask over it.
c10::intrusive_ptr<c10d::Store> open_store(const LauncherEnvironment& place,
                                           const WorldOptions& options,
                                           const std::optional<Listening>& serves) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<uint16_t>(place.port);
  how.isServer = serves.has_value();
  how.waitWorkers = false;
  how.timeout = options.start_timeout;
  // PyTorch's own client tries for up to twice the time, ignores signals and prints call stacks.
  if (!serves) wait_for_server(place.host, place.port, options.start_timeout, options.check);
  try {
    const bool one_address = serves && !serves->address.empty();
    const int socket = one_address ? listen_at(serves->address, place.port) : -1;
    if (socket >= 0) how.masterListenFd = socket;
    auto store = c10::make_intrusive<c10d::TCPStore>(place.host, how);
    // A launcher's store outlives an attempt that failed, and so would its words.
    return c10::make_intrusive<c10d::PrefixStore>(
        "troupe/" + short_name(place.job, kLongestJob) + std::to_string(place.attempt), store);
  } catch (const std::system_error& e) {
    fail_for_thread(place.host + ':' + std::to_string(place.port), e);
  } catch (const std::exception& e) {
    fail(Code::kNoRendezvous, place.host + ':' + std::to_string(place.port),
         std::string(serves ? "rank 0 cannot open it: " : "cannot be reached: ") +
             first_line(e.what()) +
             ". Set MASTER_ADDR to rank 0's machine and MASTER_PORT to a free port");
  }
}

c10::intrusive_ptr<c10d::Backend> gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, bool one_machine,
                                               const WorldOptions& options) {
  auto how = c10d::ProcessGroupGloo::Options::create(options.hang_timeout);
  // The threads of torch 2.11's ProcessGroupGloo write the name of the last completed collective
  // into one string without a lock: with two threads it is sooner or later freed twice.
  how->threads = 1;
  using Gloo = c10d::ProcessGroupGloo;
  const bool lazy = size > options.most_in_mesh;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  how->devices.push_back(interface != nullptr ? Gloo::createDeviceForInterface(interface, lazy)
                         : one_machine        ? Gloo::createDeviceForHostname("127.0.0.1", lazy)
                                              : Gloo::createDefaultDevice(lazy));
  auto backend = c10::make_intrusive<Gloo>(store, rank, size, how);
  // A first connection is waited for a minute at most, whatever the timeout: the ring is connected
  // now, when all make the group, and not in a collective to which ranks may come minutes apart.
  if (lazy) {
    std::vector<at::Tensor> one{at::ones({1}, at::kDouble)};
    backend->allreduce(one)->wait();
  }
  return backend;
}

}  // namespace

struct World::Store {
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<KeyValueStore> keys;
  std::mutex mutex;
  std::map<std::string, int64_t> rounds;  // of all_gather_texts, by topic

  int64_t next_round(const std::string& topic) {
    const std::lock_guard lock(mutex);
    return rounds[topic]++;
  }
};

World::World() : World(LauncherEnvironment{}, c10::kCPU, {}) {}

World::World(const LauncherEnvironment& place, const c10::Device& device,
             const WorldOptions& options)
    : place_(place), device_(device), options_(options), store_(std::make_shared<Store>()) {
  const bool has_peers = place_.size > 1 && !options_.played && !options_.threads;
  pulses_ = has_peers ? Pulses::of_launcher(static_cast<int>(place_.size)) : nullptr;
  pulse_ = pulses_ ? std::shared_ptr<Pulse>(pulses_, &pulses_->of(place_.rank))
                   : std::make_shared<Pulse>();
  if (has_peers) rendezvous();
  if (!options_.threads) return;
  TROUPE_CHECK(device_.is_cpu(), "ranks that are threads work on the CPU, not on", device_);
  store_->keys = options_.threads->store;
}

void World::rendezvous() {
  std::optional<Listening> serves;
  if (!place_.launcher_has_store && place_.rank == 0) {
    const bool one_machine = place_.has_local_rank && place_.local_size == place_.size;
    serves = one_machine ? Listening{.address = place_.host} : listening_for_machines(place_.host);
    exposure_ = serves->exposure;
  }
  store_->store = open_store(place_, options_, serves);
  TcpKeyValueStore lobby(store_->store);
  const Rendezvous met =
      troupe::rendezvous(lobby, {.rank = place_.rank,
                                 .size = place_.size,
                                 .process = to_text(this_process()),
                                 .place = place_.host + ':' + std::to_string(place_.port),
                                 .timeout = options_.start_timeout,
                                 .check = options_.check,
                                 .first_serves = !place_.launcher_has_store});
  const auto of_run = [&](c10::intrusive_ptr<c10d::Store> store) {
    return c10::make_intrusive<c10d::PrefixStore>(met.name, std::move(store));
  };
  store_->store = of_run(store_->store);
  store_->keys = std::make_shared<TcpKeyValueStore>(store_->store);
  std::vector<Process> processes;
  for (const std::string& text : met.processes) processes.push_back(process_of(text));
  learn_hosts(processes);
  watch_ = std::make_unique<Watch>(
      Watch::Self{.rank = place_.rank,
                  .size = place_.size,
                  .pulse = pulse_,
                  .all = pulses_,
                  .processes = std::move(processes),
                  .first_serves = !place_.launcher_has_store},
      std::make_unique<TcpKeyValueStore>(of_run(open_store(place_, options_, /*serves=*/{}))));
}

void World::learn_hosts(const std::vector<Process>& processes) {
  std::set<std::string> before;
  for (size_t r = 0; r < processes.size(); ++r) {
    const std::string& machine = processes[r].machine;
    if (r > 0 && machine == processes[r - 1].machine) continue;
    hosts_in_rows_ &= before.insert(machine).second;
  }
  if (place_.has_local_rank || before.size() == 1) return;
  fail(Code::kBadValue, "LOCAL_RANK", "is not set, and the ranks are on", before.size(),
       "machines: set LOCAL_RANK and LOCAL_WORLD_SIZE, a rank's place on its machine");
}

World::~World() {
  watch_.reset();
  leave(kLeaveTime);
}

// What the others read last may be why all of them end.
void World::leave(Milliseconds most) {
  if (store_->store == nullptr) return;
  const std::string bye = "bye/";
  try {
    store().post(bye + std::to_string(place_.rank), "");
    if (place_.rank != 0 || place_.launcher_has_store) return;
    const auto end = std::chrono::steady_clock::now() + most;
    const auto in_one = static_cast<int64_t>(kKeysOfRequest);
    for (int64_t first = 1; first < place_.size; first += in_one) {
      const auto missing = [&] {
        std::vector<std::string> keys;
        for (int64_t r = first; r < std::min(place_.size, first + in_one); ++r) {
          if (!watch_ || !watch_->has_ended(r)) keys.push_back(bye + std::to_string(r));
        }
        return !keys.empty() && !store().peek_all(keys);
      };
      for (Milliseconds pause = kLeavePause; missing(); pause = next_pause(pause, place_.size)) {
        if (std::chrono::steady_clock::now() >= end) return;
        std::this_thread::sleep_for(pause);
      }
    }
  } catch (const std::exception&) {  // the store is gone
  }
}

void World::last_words(const std::string& text, Code code) {
  ends_ = true;
  if (watch_) watch_->last_words(text, code);
}

Loss World::find_lost(const std::string& failed) {
  TROUPE_CHECK(watch_ != nullptr, "a world of one rank loses none");
  ends_ = true;
  return watch_->find_lost(failed);
}

KeyValueStore& World::store() {
  TROUPE_CHECK(store_->keys != nullptr, "a world of one rank has no store");
  return *store_->keys;
}

std::shared_ptr<ProcessGroup> World::group(const std::vector<int64_t>& ranks,
                                           const std::string& channel,
                                           const GroupOptions& options) {
  return make(ranks, !device_.is_cpu() || options_.staged, channel, options);
}

std::shared_ptr<ProcessGroup> World::all() {
  std::vector<int64_t> ranks(static_cast<size_t>(size()));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int64_t>(r);
  return group(ranks);
}

std::shared_ptr<ProcessGroup> World::processors() {
  std::vector<int64_t> ranks(static_cast<size_t>(size()));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int64_t>(r);
  return make(ranks, false, {});
}

std::shared_ptr<ProcessGroup> World::make(const std::vector<int64_t>& ranks, bool on_device,
                                          const std::string& channel, const GroupOptions& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  TROUPE_CHECK(own != ranks.end(), "rank", rank(), "is not of the group", rank_list(ranks));
  const bool staged = options_.staged || options.staged;
  const std::string key = group_key(!on_device ? "gloo"
                                    : staged   ? "staged"
                                               : "nccl",
                                    ranks, channel);
  std::shared_ptr<ProcessGroup>& group = groups_[key];
  TROUPE_CHECK(!group || group->ranks() == ranks, "ranks", rank_list(ranks), "and",
               rank_list(group->ranks()), "have one key in the store:", key);
  if (group) return group;
  if (ranks.size() == 1) return group = std::make_shared<ProcessGroup>(rank());
  const int index = static_cast<int>(own - ranks.begin());
  const int count = static_cast<int>(ranks.size());
  auto backend = std::make_unique<ProcessGroup::Backend>();
  try {
    auto store = store_->store == nullptr
                     ? nullptr
                     : c10::make_intrusive<c10d::PrefixStore>(key, store_->store);
    if (options_.played) {
      backend->c10d = echo_backend(index, count);
    } else if (options_.threads) {
      backend->c10d = thread_backend(
          options_.threads->ranks,
          {.key = key, .ranks = ranks, .index = index, .timeout = options_.hang_timeout});
    } else if (on_device && !staged) {
      auto make_nccl = reinterpret_cast<MakeNccl>(cuda_plugin_symbol(kMakeNccl));
      backend->c10d = c10::intrusive_ptr<c10d::Backend>::reclaim(
          make_nccl(store, index, count, options_.hang_timeout.count(), options));
    } else {
      backend->c10d = gloo_backend(store, index, count, place_.local_size == place_.size, options_);
    }
    if (on_device && staged) backend->c10d = staged_backend(std::move(backend->c10d));
  } catch (const std::system_error& e) {
    fail_for_thread("ranks " + rank_list(ranks), e);
  } catch (const std::exception& e) {
    // All ranks have met by now: one that has ended since is the cause, as of a collective that fails.
    fail(has_lost(ranks) ? Code::kRankLost : Code::kNoRendezvous, "ranks " + rank_list(ranks),
         first_line(e.what()));
  }
  group = std::shared_ptr<ProcessGroup>(new ProcessGroup(std::move(backend), ranks, index, pulse_));
  group->timeout_ = options_.hang_timeout;
  return group;
}

// A process that is killed closes its connections first, and is seen to be gone a moment later.
bool World::has_lost(const std::vector<int64_t>& ranks) const {
  if (!watch_) return false;
  const auto ended = [&](int64_t r) { return r != rank() && watch_->has_ended(r); };
  const auto end = std::chrono::steady_clock::now() + kEndTime;
  while (!std::ranges::any_of(ranks, ended)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLeavePause);
  }
  return true;
}

// Ranks may be unequally slow to begin: to open data, to build the model, to read a checkpoint.
std::chrono::milliseconds World::time_to_answer() const {
  const bool begins = pulse_->now().phase < Phase::kBatch;
  return begins ? std::max(options_.start_timeout, options_.hang_timeout) : options_.hang_timeout;
}

std::vector<std::string> World::all_gather_texts(const std::string& topic, const std::string& mine,
                                                 Patience patience) {
  if (size() == 1 || options_.played)
    return std::vector<std::string>(static_cast<size_t>(size()), mine);
  const Waiting waiting(std::this_thread::get_id() == thread_ ? pulse_.get() : nullptr);
  TextAllGather how{.rank = rank(),
                    .size = size(),
                    .topic = topic,
                    .round = topic + '/' + std::to_string(store_->next_round(topic)),
                    .silence = std::max(options_.hang_timeout, kLeastSilence),
                    .has_ended = [this](int64_t r) {
                      if (r == rank()) return ends_.load();
                      return watch_ ? watch_->has_ended(r) : options_.threads->ended.load();
                    }};
  if (patience == Patience::kTimeout) how.timeout = time_to_answer();
  return troupe::all_gather_texts(store(), how, mine);
}

}  // namespace troupe
