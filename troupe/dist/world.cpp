#include "troupe/dist/world.h"

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
#include <utility>

#include "troupe/core/check.h"
#include "troupe/dist/echo_backend.h"
#include "troupe/dist/group_backend.h"
#include "troupe/ops/cuda_plugin.h"

namespace troupe {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLeaveTime{2000};

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
      fail(Code::kRankLost, "the meeting point's \"" + key + '"', e.what());
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

std::string list_of(const std::vector<int64_t>& ranks) {
  std::string out;
  for (const int64_t r : ranks) {
    if (!out.empty()) out += ',';
    out += std::to_string(r);
  }
  return out;
}

// A connection of its own: what waits over one lets nobody else ask over it.
c10::intrusive_ptr<c10d::Store> open_store(const Place& place, const WorldOptions& options,
                                           bool serves) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<uint16_t>(place.port);
  how.isServer = serves;
  how.waitWorkers = false;
  how.timeout = options.start_timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(place.host, how);
    // A launcher's store outlives a failed attempt, and so would its addresses.
    return c10::make_intrusive<c10d::PrefixStore>("troupe/" + std::to_string(place.attempt), store);
  } catch (const std::exception& e) {
    fail(Code::kNoMeeting, place.host + ':' + std::to_string(place.port),
         std::string(serves ? "rank 0 cannot open it: " : "cannot be reached: ") + e.what() +
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
  store_->board = std::make_unique<StoreBoard>(store_->store);
  const std::string here = "here/";
  board().post(here + std::to_string(place_.rank), to_text(this_process()));
  const auto end = std::chrono::steady_clock::now() + options_.start_timeout;
  std::vector<int64_t> missing;
  std::vector<Process> processes;
  for (int64_t r = 0; r < place_.size; ++r) {
    const auto left =
        std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
    try {
      const std::string key = here + std::to_string(r);
      processes.push_back(process_of(board().read(key, std::max(left, Milliseconds(1)))));
    } catch (const Error&) {
      missing.push_back(r);
    }
  }
  if (!missing.empty()) {
    fail(Code::kNoMeeting, place_.host + ':' + std::to_string(place_.port),
         "of " + std::to_string(place_.size) + " ranks, rank(s) " + list_of(missing) +
             " did not arrive within " + std::to_string(options_.start_timeout.count() / 1000) +
             " s (run.start_timeout)");
  }
  watch_ = std::make_unique<Watch>(
      Watch::Self{.rank = place_.rank,
                  .size = place_.size,
                  .pulse = pulse_,
                  .all = pulses_,
                  .processes = std::move(processes),
                  .first_serves = !place_.launcher_has_store},
      std::make_unique<StoreBoard>(open_store(place_, options_, /*serves=*/false)));
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
  if (watch_) watch_->last_words(text, code);
}

Loss World::find_lost(const std::string& failed) {
  TROUPE_CHECK(watch_ != nullptr, "- a world of one rank loses none");
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
  TROUPE_CHECK(own != ranks.end(), "- rank", rank(), "is not of the group", list_of(ranks));
  const std::string key = (on_device ? "nccl/" : "gloo/") + list_of(ranks) + '/' + channel;
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
    fail(Code::kNoMeeting, "ranks " + list_of(ranks), e.what());
  }
  return group =
             std::shared_ptr<RankGroup>(new RankGroup(std::move(backend), ranks, index, pulse_));
}

std::vector<std::string> World::gather_texts(const std::string& topic, const std::string& mine) {
  if (size() == 1 || options_.played)
    return std::vector<std::string>(static_cast<size_t>(size()), mine);
  const std::string round = topic + '/' + std::to_string(store_->next_round(topic)) + '/';
  board().post(round + std::to_string(rank()), mine);
  const Waiting waiting(std::this_thread::get_id() == thread_ ? pulse_.get() : nullptr);
  const auto end = std::chrono::steady_clock::now() + options_.hang_timeout;
  std::vector<std::string> out;
  for (int64_t r = 0; r < size(); ++r) {
    out.push_back(r == rank() ? mine : from_rank(r, topic, round + std::to_string(r), end));
  }
  return out;
}

// Asked for again and again: nobody tells one that waits for a text that its writer is no more.
std::string World::from_rank(int64_t from, const std::string& topic, const std::string& key,
                             std::chrono::steady_clock::time_point end) {
  const std::string what = "the exchange of \"" + topic + '"';
  for (Milliseconds pause{1};; pause = std::min(2 * pause, Milliseconds(100))) {
    const bool ended = watch_->has_ended(from);  // before the last look for what it may have left
    if (std::optional<std::string> text = board().peek(key)) return *text;
    if (ended) fail(Code::kRankLost, what, "rank", from, "has ended");
    if (std::chrono::steady_clock::now() >= end) {
      fail(Code::kRankLost, what, "nothing came from rank", from, "in",
           options_.hang_timeout.count() / 1000, "s (run.hang_timeout)");
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace troupe
