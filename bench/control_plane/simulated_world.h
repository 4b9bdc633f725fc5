// The ranks of a run as threads of this process, each a host of its own as far as the others can
// tell, with a store's server in another process. What they run is the program's own: rendezvous,
// watch and heartbeats, a World and its ParallelState, Saver and resume(). What they lack is a model
// and its steps; state_boxes.h says what stands for it. Tensors go by RankExchange.
//
// What a process would own and ranks here share, or is not there: the operating system's word that a
// process has ended (a rank is lost by its heartbeat alone, as one of another host), and Gloo's and
// NCCL's connections (start_probe.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bench/control_plane/rank_exchange.h"
#include "bench/control_plane/row.h"
#include "bench/control_plane/state_boxes.h"
#include "bench/control_plane/store_process.h"
#include "troupe/core/file/fault.h"
#include "troupe/core/file/publish.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/distributed/world/watch.h"

namespace troupe {
class ThreadRanks;
}

namespace troupe::control_plane {

inline constexpr int64_t kRanksOfHost = 8;

std::vector<int64_t> ranks_of_host(int64_t host);

struct SimulatedFaults {
  int64_t late_each = 0;  // each so many-th rank comes late; 0: none
  std::chrono::milliseconds late{0};
  int64_t slow_host = -1;  // whose ranks wait so long before each request; -1: none
  std::chrono::milliseconds slow{0};
};

struct SimulatedRun {
  int64_t ranks = 8;
  MeshShape mesh = {};
  std::string folder = {};    // of its checkpoints
  bool first_serves = false;  // the store ends with rank 0, else with the launcher
  SimulatedFaults faults = {};
  std::chrono::milliseconds beat{1000};
  bool looks_by_three = false;  // Asking::looks_by_three
};

class SimulatedWorld {
 public:
  // The catalog outlives it.
  SimulatedWorld(const Catalog& catalog, SimulatedRun run);
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;
  ~SimulatedWorld();

  // Each ends with a row, also where ranks fail: its `fault` says how. start() comes first.
  Row start();
  Row save(int64_t step);
  Row load();  // the newest step, whatever layout saved it; each value is looked at
  // So many saves, and heartbeats for `watched`: as many as there are in an hour with four saves.
  Row hour(int64_t first_step, int64_t saves, std::chrono::milliseconds watched);

  struct Ending {
    Row row;
    int64_t survivors = 0, named = 0, unknown = 0, wrong = 0;  // reports of survivors
    std::string message;  // a survivor's, which names a lost rank
  };
  // These ranks end without a word, `store` too; then the others' collective fails. Nothing can
  // follow it.
  Ending lose(const std::vector<int64_t>& lost, bool store);

 private:
  struct Rank;
  void begin(Rank& rank);
  void make_states();
  CheckpointGroup group_of(Rank& rank);
  Row measured(const std::string& phase, const std::function<void(Rank&)>& f);
  // f(rank) on a thread for each rank that is there; the first error of each.
  std::vector<std::string> for_all(const std::vector<Rank*>& ranks,
                                   const std::function<void(Rank&)>& f);
  std::vector<Rank*> all() const;

  const Catalog& catalog_;
  const SimulatedRun run_;
  const ProcessMesh mesh_;
  StoreProcess server_;
  RankExchange exchange_;
  std::shared_ptr<ThreadRanks> threads_;
  Fs fs_;
  const Faults no_faults_;
  int64_t descriptors_before_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace troupe::control_plane
