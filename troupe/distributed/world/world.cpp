#include "troupe/distributed/world/world.h"

// As torch's own build sets them: without, its headers are empty.
#define USE_C10D_GLOO

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/first_line.h"
#include "troupe/distributed/group/echo_backend.h"
#include "troupe/distributed/group/group_backend.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/world/gather_texts.h"
#include "troupe/distributed/world/meeting.h"
#include "troupe/distributed/world/meeting_point.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLeaveTime{2000};
constexpr Milliseconds kLeastSilence{10'000};  // ten beats: a busy machine may lose some

class StoreBoard : public Board {
 public:
  explicit StoreBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void post(const std::string& key, const std::string& text) override {
    guarded(key, [&] { store_->set(key, std::vector<uint8_t>(text.begin(), text.end())); });
  }
  std::optional<std::string> peek(const std::string& key) override {
    std::optional<std::string> out;
    guarded(key, [&] {
      if (store_->check({key})) out = got(key);
    });
    return out;
  }
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override {
    std::optional<std::vector<std::string>> out;
    guarded(keys.front() + "\" and so on, \"" + keys.back(), [&] {
      if (!store_->check(keys)) return;
      out.emplace();
      for (const std::vector<uint8_t>& bytes : store_->multiGet(keys)) {
        out->emplace_back(bytes.begin(), bytes.end());
      }
    });
    return out;
  }
  std::string read(const std::string& key, Milliseconds timeout) override {
    std::string out;
    guarded(key, [&] {
      store_->wait({key}, timeout);
      out = got(key);
    });
    return out;
  }
  std::string claim(const std::string& key, const std::string& text) override {
    std::string out;
    guarded(key, [&] {
      const std::vector<uint8_t> bytes =
          store_->compareSet(key, {}, std::vector<uint8_t>(text.begin(), text.end()));
      out.assign(bytes.begin(), bytes.end());
    });
    return out;
  }

 private:
  std::string got(const std::string& key) {
    const std::vector<uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }
  template <class F>
  static void guarded(const std::string& key, F&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      fail(Code::kRankLost, "the meeting point's \"" + key + '"', first_line(e.what()));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

// A connection of its own: what waits over one lets nobody else ask over it.
c10::intrusive_ptr<c10d::Store> open_store(const Place& place, const WorldOptions& options,
                                           bool serves) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<uint16_t>(place.port);
  how.isServer = serves;
  how.waitWorkers = false;
  how.timeout = options.start_timeout;
  // PyTorch's own client tries for up to twice the time, hears no signal and tells call stacks.
  if (!serves) wait_for_server(place.host, place.port, options.start_timeout, options.check);
  try {
    // Of several machines each may know the name by another address: then all interfaces listen.
    const bool one_machine = place.local_is_told && place.local_size == place.size;
    const int socket = serves && one_machine ? listen_at(place.host, place.port) : -1;
    if (socket >= 0) how.masterListenFd = socket;
    auto store = c10::make_intrusive<c10d::TCPStore>(place.host, how);
    // A launcher's store outlives an attempt that failed, and so would its words.
    return c10::make_intrusive<c10d::PrefixStore>(
        "troupe/" + place.job + std::to_string(place.attempt), store);
  } catch (const std::exception& e) {
    fail(Code::kNoMeeting, place.host + ':' + std::to_string(place.port),
         std::string(serves ? "rank 0 cannot open it: " : "cannot be reached: ") +
             first_line(e.what()) +
             ". Set MASTER_ADDR to rank 0's machine and MASTER_PORT to a free port");
  }
}

}  // namespace

struct World::Store {
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<StoreBoard> board;
  std::mutex mutex;
  std::map<std::string, int64_t> rounds;  // of gather_texts, by topic

  int64_t next_round(const std::string& topic) {
    const std::lock_guard lock(mutex);
    return rounds[topic]++;
  }
};

World::World() : World(Place{}, c10::kCPU, {}) {}

World::World(const Place& place, const c10::Device& device, const WorldOptions& options)
    : place_(place), device_(device), options_(options), store_(std::make_shared<Store>()) {
  const bool meets = place_.size > 1 && !options_.played;
  pulses_ = meets ? Pulses::of_launcher(static_cast<int>(place_.size)) : nullptr;
  pulse_ = pulses_ ? std::shared_ptr<Pulse>(pulses_, &pulses_->of(place_.rank))
                   : std::make_shared<Pulse>();
  if (meets) meet();
}

void World::meet() {
  const bool serves = !place_.launcher_has_store && place_.rank == 0;
  store_->store = open_store(place_, options_, serves);
  StoreBoard lobby(store_->store);
  const Meeting meeting =
      troupe::meet(lobby, {.rank = place_.rank,
                           .size = place_.size,
                           .process = to_text(this_process()),
                           .place = place_.host + ':' + std::to_string(place_.port),
                           .timeout = options_.start_timeout,
                           .check = options_.check,
                           .first_serves = !place_.launcher_has_store});
  const auto of_meeting = [&](c10::intrusive_ptr<c10d::Store> store) {
    return c10::make_intrusive<c10d::PrefixStore>(meeting.name, std::move(store));
  };
  store_->store = of_meeting(store_->store);
  store_->board = std::make_unique<StoreBoard>(store_->store);
  std::vector<Process> processes;
  for (const std::string& text : meeting.processes) processes.push_back(process_of(text));
  learn_hosts(processes);
  watch_ = std::make_unique<Watch>(
      Watch::Self{.rank = place_.rank,
                  .size = place_.size,
                  .pulse = pulse_,
                  .all = pulses_,
                  .processes = std::move(processes),
                  .first_serves = !place_.launcher_has_store},
      std::make_unique<StoreBoard>(of_meeting(open_store(place_, options_, /*serves=*/false))));
}

void World::learn_hosts(const std::vector<Process>& processes) {
  std::set<std::string> before;
  for (size_t r = 0; r < processes.size(); ++r) {
    const std::string& machine = processes[r].machine;
    if (r > 0 && machine == processes[r - 1].machine) continue;
    hosts_in_rows_ &= before.insert(machine).second;
  }
  if (place_.local_is_told || before.size() == 1) return;
  fail(Code::kBadValue, "LOCAL_RANK", "is not set, and the ranks are on", before.size(),
       "machines: set LOCAL_RANK and LOCAL_WORLD_SIZE, a rank's place on its machine");
}

// Where rank 0 serves the meeting point, it stays until the others need it no more: what they read
// last may be why all of them end.
World::~World() {
  if (store_->board == nullptr) return;
  watch_.reset();
  const std::string bye = "bye/";
  try {
    board().post(bye + std::to_string(place_.rank), "");
    if (place_.rank != 0 || place_.launcher_has_store) return;
    const auto end = std::chrono::steady_clock::now() + kLeaveTime;
    for (int64_t r = 1; r < place_.size; ++r) {
      const auto left =
          std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
      store_->store->wait({bye + std::to_string(r)}, std::max(left, Milliseconds(1)));
    }
  } catch (const std::exception&) {  // somebody is gone already: nobody is left to wait for
  }
}

void World::last_words(const std::string& text, Code code) {
  ends_ = true;
  if (watch_) watch_->last_words(text, code);
}

Loss World::find_lost(const std::string& failed) {
  TROUPE_CHECK(watch_ != nullptr, "- a world of one rank loses none");
  ends_ = true;
  return watch_->find_lost(failed);
}

Board& World::board() {
  TROUPE_CHECK(store_->board != nullptr, "- a world of one rank has no board");
  return *store_->board;
}

std::shared_ptr<RankGroup> World::group(const std::vector<int64_t>& ranks,
                                        const std::string& channel) {
  return make(ranks, !device_.is_cpu(), channel);
}

std::shared_ptr<RankGroup> World::all() {
  std::vector<int64_t> ranks(static_cast<size_t>(size()));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int64_t>(r);
  return group(ranks);
}

std::shared_ptr<RankGroup> World::processors() {
  std::vector<int64_t> ranks(static_cast<size_t>(size()));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int64_t>(r);
  return make(ranks, false, {});
}

std::shared_ptr<RankGroup> World::make(const std::vector<int64_t>& ranks, bool on_device,
                                       const std::string& channel) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  TROUPE_CHECK(own != ranks.end(), "- rank", rank(), "is not of the group", rank_list(ranks));
  const std::string key = (on_device ? "nccl/" : "gloo/") + rank_list(ranks) + '/' + channel;
  std::shared_ptr<RankGroup>& group = groups_[key];
  if (group) return group;
  if (ranks.size() == 1) return group = std::make_shared<RankGroup>(rank());
  const int index = static_cast<int>(own - ranks.begin());
  const int count = static_cast<int>(ranks.size());
  auto backend = std::make_unique<RankGroup::Backend>();
  try {
    auto store =
        options_.played ? nullptr : c10::make_intrusive<c10d::PrefixStore>(key, store_->store);
    if (options_.played) {
      backend->c10d = echo_backend(index, count);
    } else if (on_device) {
      auto make_nccl = reinterpret_cast<MakeNccl>(cuda_plugin_symbol(kMakeNccl));
      backend->c10d = c10::intrusive_ptr<c10d::Backend>::reclaim(
          make_nccl(store, index, count, options_.hang_timeout.count()));
    } else {
      auto how = c10d::ProcessGroupGloo::Options::create(options_.hang_timeout);
      // torch 2.11's threads write the name of what they completed last into one string, unguarded:
      // a second one would in time free it twice.
      how->threads = 1;
      const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
      how->devices.push_back(
          interface != nullptr ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                               : (place_.local_size == place_.size
                                      ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                      : c10d::ProcessGroupGloo::createDefaultDevice()));
      backend->c10d = c10::make_intrusive<c10d::ProcessGroupGloo>(store, index, count, how);
    }
  } catch (const std::exception& e) {
    fail(Code::kNoMeeting, "ranks " + rank_list(ranks), first_line(e.what()));
  }
  return group =
             std::shared_ptr<RankGroup>(new RankGroup(std::move(backend), ranks, index, pulse_));
}

// Ranks may be unequally slow to begin: to open data, to build the model, to read a checkpoint.
std::chrono::milliseconds World::time_to_answer() const {
  const bool begins = pulse_->now().phase < Phase::kBatch;
  return begins ? std::max(options_.start_timeout, options_.hang_timeout) : options_.hang_timeout;
}

std::vector<std::string> World::gather_texts(const std::string& topic, const std::string& mine,
                                             Patience patience) {
  if (size() == 1 || options_.played)
    return std::vector<std::string>(static_cast<size_t>(size()), mine);
  const Waiting waiting(std::this_thread::get_id() == thread_ ? pulse_.get() : nullptr);
  Gathering how{
      .rank = rank(),
      .size = size(),
      .topic = topic,
      .round = topic + '/' + std::to_string(store_->next_round(topic)),
      .silence = std::max(options_.hang_timeout, kLeastSilence),
      .has_ended = [this](int64_t r) { return r == rank() ? ends_.load() : watch_->has_ended(r); }};
  if (patience == Patience::kTimeout) how.timeout = time_to_answer();
  return troupe::gather_texts(board(), how, mine);
}

}  // namespace troupe
