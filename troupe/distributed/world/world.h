// The ranks of a run: rendezvous, process groups, the key-value store, failure detection. Created
// once at the start and passed down.
//
//   const auto place = launcher_environment();   // absent: this process is alone
//   World world(place.value_or(LauncherEnvironment{}), device, options);
//   const auto shards = world.group(mesh.ranks_of(GroupKind::kShard, world.rank()));
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troupe/distributed/group/group_options.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/distributed/world/key_value_store.h"
#include "troupe/distributed/world/watch.h"

namespace troupe {

struct LauncherEnvironment {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0, local_size = 1;  // among the processes of this machine
  bool has_local_rank = true;              // set by the launcher; else one machine is assumed
  std::string host = "127.0.0.1";          // where rank 0 is
  int port = 29500;
  int64_t attempt = 0;                 // restarts by the launcher so far
  std::string job = {};                // its id at the launcher: keeps two jobs at one port apart
  bool launcher_has_store = false;     // the launcher serves the store (torchrun), not rank 0
  std::string source = "one process";  // "torchrun", "SLURM", "Open MPI", "RANK and WORLD_SIZE"
};

// From the launcher's environment: torchrun or plain RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
// srun; mpirun. Empty without a launcher. E2005 names a variable that is missing or malformed.
using GetVariable = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<LauncherEnvironment> launcher_environment_from(const GetVariable& get);
std::optional<LauncherEnvironment> launcher_environment();

struct Threads;  // distributed/world/threads.h

struct WorldOptions {
  std::chrono::milliseconds start_timeout{300'000};  // for all ranks to arrive
  std::chrono::milliseconds hang_timeout{600'000};   // for one collective
  // A Gloo group of more ranks connects a ring at its start, and two others when one first has
  // something for the other; a smaller one connects all. A mesh of N is N - 1 sockets a rank.
  int64_t most_in_mesh = 64;
  bool played = false;                    // by this process alone: nobody is met (echo_backend.h)
  bool staged = false;                    // GPUs' tensors go by Gloo (staged_backend.h)
  std::shared_ptr<Threads> threads = {};  // the ranks are threads of this process (threads.h)
  std::function<void()> check = {};       // called during rendezvous; may throw
};

class World {
 public:
  World();  // one rank
  // Rendezvous with the other ranks; `device` is this rank's. E6002 names the ranks that did not
  // arrive, or says why the store cannot be reached.
  World(const LauncherEnvironment& place, const c10::Device& device, const WorldOptions& options);
  ~World();

  int64_t rank() const { return place_.rank; }
  int64_t size() const { return place_.size; }
  const LauncherEnvironment& place() const { return place_; }
  // Why rank 0's store listens at all interfaces of the machine, for a warning; else empty.
  const std::string& exposure() const { return exposure_; }
  bool played() const { return options_.played; }        // the other ranks are not there
  bool staged() const { return options_.staged; }        // collectives go through host memory
  bool hosts_in_rows() const { return hosts_in_rows_; }  // ranks of one machine follow each other
  const c10::Device& device() const { return device_; }

  // The process group of these ranks of the world, which include this one. Each of them calls with
  // the same list; the group is created once. NCCL if the device is a GPU and neither
  // staged() nor how.staged, else Gloo. Collectives of a group run in order; another `channel` is another group of the same ranks,
  // whose collectives do not wait for those of the first, with options of its own.
  std::shared_ptr<ProcessGroup> group(const std::vector<int64_t>& ranks,
                                      const std::string& channel = {},
                                      const GroupOptions& how = {});
  std::shared_ptr<ProcessGroup> all();         // all ranks, tensors on the device
  std::shared_ptr<ProcessGroup> processors();  // all ranks, tensors on the CPU

  // All-gathers texts, in rank order, through the store: from any thread, one call at a time for
  // each topic. E6001 as soon as a rank is known to have exited, and after `hang_timeout`; with
  // kWhileHeard only if a rank has had no heartbeat for that long.
  enum class Patience { kTimeout, kWhileAlive };
  std::vector<std::string> all_gather_texts(const std::string& topic, const std::string& mine,
                                            Patience patience = Patience::kTimeout);
  KeyValueStore& store();

  Pulse& pulse() { return *pulse_; }  // this rank's status
  bool launcher_sees_pulses() const { return pulses_ != nullptr; }
  // Tells peers why this rank exits; after a failed collective, finds the rank that caused it.
  void last_words(const std::string& text, Code code);
  Loss find_lost(const std::string& failed);
  bool peer_ended() const { return watch_ != nullptr && watch_->peer_ended(); }
  bool peer_lost() const { return watch_ != nullptr && watch_->peer_lost(); }
  // For a process that ends, also by the destructor: where rank 0 serves the store, waits until the
  // others have left or ended, for `most` at most.
  void leave(std::chrono::milliseconds most);

 private:
  struct Store;
  void rendezvous();
  void learn_hosts(const std::vector<Process>& processes);
  std::chrono::milliseconds time_to_answer() const;
  std::shared_ptr<ProcessGroup> make(const std::vector<int64_t>& ranks, bool on_device,
                                     const std::string& channel, const GroupOptions& how = {});
  // Whether the process of one of these ranks is gone, or will be within a second.
  bool has_lost(const std::vector<int64_t>& ranks) const;

  LauncherEnvironment place_;
  c10::Device device_{c10::kCPU};
  WorldOptions options_;
  bool hosts_in_rows_ = true;
  std::string exposure_;
  std::shared_ptr<Pulses> pulses_;  // if the launcher shares them
  std::shared_ptr<Pulse> pulse_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Watch> watch_;
  std::thread::id thread_ = std::this_thread::get_id();  // the training thread
  std::atomic<bool> ends_ = false;                       // last words were posted
  std::map<std::string, std::shared_ptr<ProcessGroup>> groups_;
};

}  // namespace troupe
