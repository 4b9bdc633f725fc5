// All ranks of a run: where this one stands among them, how they meet, and what they tell each
// other. Made once at the start and passed down.
//
//   const auto place = place_from_environment();   // absent: this process is alone
//   World world(place.value_or(Place{}), device, options);
//   std::shared_ptr<RankGroup> shards = world.group(mesh.ranks_of(GroupKind::kShard,
//   world.rank()));
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

#include "troupe/distributed/group/group.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/distributed/world/board.h"
#include "troupe/distributed/world/watch.h"

namespace troupe {

struct Place {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0, local_size = 1;  // among the processes of this machine
  bool local_is_told = true;               // by the launcher; else all are taken to be of this one
  std::string host = "127.0.0.1";          // where rank 0 is
  int port = 29500;
  int64_t attempt = 0;                 // how often the launcher has started this run before
  std::string job = {};                // the launcher's name of it: two at one port do not mix
  bool launcher_has_store = false;     // torchrun: the meeting point is its own, not rank 0's
  std::string source = "one process";  // "torchrun", "SLURM", "Open MPI", "RANK and WORLD_SIZE"
};

// Out of what a launcher sets: torchrun or plain RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; srun;
// mpirun. Nothing: no launcher. E2005 where a variable is missing or does not read, by its name.
using GetVariable = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<Place> place_from(const GetVariable& get);
std::optional<Place> place_from_environment();

struct WorldOptions {
  std::chrono::milliseconds start_timeout{300'000};  // for all ranks to arrive
  std::chrono::milliseconds hang_timeout{600'000};   // of one collective
  bool played = false;               // by this process alone: nobody is met (echo_backend.h)
  std::function<void()> check = {};  // called again and again while ranks meet; may throw
};

class World {
 public:
  World();  // of one
  // Meets the others. E6002 with the ranks that did not come, or why the meeting point is not to be
  // had; `device` is this rank's own.
  World(const Place& place, const c10::Device& device, const WorldOptions& options);
  ~World();

  int64_t rank() const { return place_.rank; }
  int64_t size() const { return place_.size; }
  const Place& place() const { return place_; }
  bool hosts_in_rows() const { return hosts_in_rows_; }  // ranks of one machine follow each other
  const c10::Device& device() const { return device_; }

  // The ranks (of the world, in the group's order) that this one is among: each of them calls with
  // the same list, and gets one group however often. Between GPUs if the device is one. What a
  // group does is done in its order; `channel` names another group of the same ranks, whose
  // operations pass those of the first.
  std::shared_ptr<RankGroup> group(const std::vector<int64_t>& ranks,
                                   const std::string& channel = {});
  std::shared_ptr<RankGroup> all();         // of the device
  std::shared_ptr<RankGroup> processors();  // all ranks, of tensors on the CPU

  // Each rank gives a text and gets all, in rank order: over the board, so from any thread; one
  // after another for each topic. E6001 as soon as a rank is known to have ended, and when
  // `hang_timeout` is over, or, for what may take any time, one has not been heard for that long.
  enum class Patience { kTimeout, kWhileHeard };
  std::vector<std::string> gather_texts(const std::string& topic, const std::string& mine,
                                        Patience patience = Patience::kTimeout);
  Board& board();

  Pulse& pulse() { return *pulse_; }  // what this rank does
  bool launcher_sees_pulses() const { return pulses_ != nullptr; }
  // This rank ends, and why: the others are told. Then, or where `failed`, an operation with
  // others, did: which rank is the cause.
  void last_words(const std::string& text, Code code);
  Loss find_lost(const std::string& failed);

 private:
  struct Store;
  void meet();
  void learn_hosts(const std::vector<Process>& processes);
  std::chrono::milliseconds time_to_answer() const;
  std::shared_ptr<RankGroup> make(const std::vector<int64_t>& ranks, bool on_device,
                                  const std::string& channel);

  Place place_;
  c10::Device device_{c10::kCPU};
  WorldOptions options_;
  bool hosts_in_rows_ = true;
  std::shared_ptr<Pulses> pulses_;  // where the launcher shares them
  std::shared_ptr<Pulse> pulse_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Watch> watch_;
  std::thread::id thread_ = std::this_thread::get_id();  // that trains
  std::atomic<bool> ends_ = false;                       // its last words are said, or being said
  std::map<std::string, std::shared_ptr<RankGroup>> groups_;
};

}  // namespace troupe
