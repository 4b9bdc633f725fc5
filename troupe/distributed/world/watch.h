// Failure detection. Each rank posts its status to the key-value store once a second (heartbeat);
// after a failed collective, one of those that noticed finds out which rank caused the failure, for
// all (loss_search.h). Heartbeats go on meanwhile.
//
// The operating system says which processes of a machine exist, and the heartbeats of its ranks tell
// the others; of a machine that is gone with all its ranks, missing heartbeats do.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/codes.h"
#include "troupe/distributed/status/process.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/distributed/world/key_value_store.h"

namespace troupe {

// The cause of a failed collective, as far as this rank can tell.
struct Loss {
  Code code = Code::kRankLost;   // kRankHung: the process exists and makes no progress
  Code cause = Code::kRankLost;  // the code that rank exited with, if it posted one; else `code`
  int64_t rank = -1;             // the rank at fault; -1: unknown
  RankStatus status = {};        // its last known status
  std::string message;           // the full report
  std::string brief;             // one line if another rank prints the full report; else `message`
};

class Watch {
 public:
  struct Self {
    int64_t rank = 0, size = 1;
    std::shared_ptr<Pulse> pulse;
    std::shared_ptr<Pulses> all = {};     // if the launcher shares them
    std::vector<Process> processes = {};  // of all ranks
    bool first_serves = false;            // rank 0 serves the store, which ends with it
    std::chrono::milliseconds beat{1000};
  };
  // Starts a thread, which alone uses `store`.
  Watch(Self self, std::unique_ptr<KeyValueStore> store);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();  // returns within a few seconds even if the network hangs

  // Tells peers why this rank exits.
  void last_words(const std::string& text, Code code);
  // After the collective `failed` did: which rank is at fault, within about four heartbeats, or ten
  // where who looked for it was lost too.
  Loss find_lost(const std::string& failed);
  // Whether the operating system says that this rank's process is gone. No network.
  bool has_ended(int64_t rank) const;
  // Whether some other rank has ended by itself, not since it had lost another (which may be this
  // one), in the middle of a step, an evaluation or a save. Known where the launcher shares the
  // pulses; no network.
  bool peer_lost() const;
  // Whether some other rank has ended: it said so, or its process is gone, or, on another machine,
  // the store that it served. Where a launcher shares the pulses: by itself, not since it had lost
  // another. As of the last heartbeat. No network.
  bool peer_ended() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe
