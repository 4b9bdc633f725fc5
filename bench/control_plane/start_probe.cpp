#include "bench/control_plane/start_probe.h"

#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/control_plane/resources.h"
#include "bench/control_plane/simulated_process.h"
#include "bench/control_plane/store_process.h"
#include "troupe/core/check.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/distributed/world/world.h"

namespace troupe::control_plane {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStart{60'000};

LauncherEnvironment place_of(int64_t rank, int64_t ranks, const StoreAddress& at) {
  LauncherEnvironment out{.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks};
  out.host = at.host;
  out.port = at.port;
  out.launcher_has_store = true;
  return out;
}

// Writes what a rendezvous of World asks of all ranks but the first.
void play_others(const StoreAddress& at, int64_t ranks) {
  try {
    CountedStore store(at, std::make_shared<Tally>());
    const std::string lead = store.read("lead", kStart);
    for (int64_t r = 1; r < ranks; ++r) {
      store.post(lead + "/here/" + std::to_string(r), to_text(simulated_process(r)));
    }
  } catch (const Error&) {  // the World says that they did not arrive
  }
}

}  // namespace

Connections connections_of(int64_t ranks, const MeshShape& shape, int64_t most_in_mesh) {
  StoreProcess server;
  WorldOptions options;
  options.most_in_mesh = most_in_mesh;
  options.hang_timeout = kStart;  // of those whose peer failed to begin
  const int64_t before = open_descriptors();
  Connections out{.ranks = ranks};
  std::string fault;
  std::mutex mutex;
  std::latch ready(ranks), counted(1);
  {
    std::vector<std::jthread> threads;
    for (int64_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        std::unique_ptr<ParallelState> state;
        try {
          state = std::make_unique<ParallelState>(
              std::make_shared<World>(place_of(r, ranks, server.address()), c10::Device(c10::kCPU),
                                      options),
              shape);
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          fault = e.what();
        }
        ready.count_down();
        counted.wait();
      });
    }
    ready.wait();
    out.descriptors = open_descriptors() - before;
    const Alive alive = keys_alive(server.address());
    out.keys = alive.keys;
    out.longest_key = alive.longest_key();
    counted.count_down();
  }
  if (!fault.empty()) throw Error(fault, Code::kNoRendezvous);
  return out;
}

GroupKey group_key_of(int64_t ranks, const MeshShape& shape) {
  const ProcessMesh mesh(ranks, shape);
  GroupKey out;
  std::vector<int64_t> members;
  size_t longest = 0;
  for (const auto& named : names_of(GroupKind{})) {
    const std::vector<int64_t> of_kind = mesh.ranks_of(named.value, 0);
    const size_t size = rank_list(of_kind).size();
    if (of_kind.size() == 1 || size <= longest) continue;
    longest = size;
    members = of_kind;
    out.kind = named.name;
  }
  TROUPE_CHECK(!members.empty(), "no group of", ranks, "ranks has two");
  out.ranks = std::ssize(members);
  StoreProcess server;
  const std::jthread others([&, at = server.address()] { play_others(at, ranks); });
  WorldOptions options;
  options.start_timeout = kStart;
  options.hang_timeout = milliseconds(1'000);
  try {
    World world(place_of(0, ranks, server.address()), c10::Device(c10::kCPU), options);
    world.group(members);
    out.said = "the group was made";
  } catch (const Error& e) {
    out.said = e.what();
  }
  const Alive alive = keys_alive(server.address());
  out.longest_key = alive.longest_key();
  out.is_stored = std::ranges::any_of(
      alive.names, [](const std::string& name) { return name.find("gloo") != std::string::npos; });
  return out;
}

}  // namespace troupe::control_plane
