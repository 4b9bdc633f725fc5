// Ends a rank that waits in a collective for a rank that has ended. Gloo's collectives then throw;
// NCCL's wait until run.hang_timeout, and the training thread with them.
//
// It calls `end`, once, in its own thread, if a peer has ended while this rank is in a step, in an
// evaluation or in a save, and has not moved for `patience`: its Pulse stands where it stood. In
// none of these can a peer end in good order, since each needs all ranks; before the first step and
// after the last one it can. A rank that only is slow has no peer that ended. Where the launcher
// says that the peer was itself in a step when it ended, nothing can come of this rank's, and
// `patience_if_lost` is all it gets, to fail by itself where its backend lets it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "troupe/distributed/status/pulse.h"

namespace troupe {

class Sentinel {
 public:
  struct Self {
    const Pulse& pulse;                // outlives it
    std::function<bool()> peer_ended;  // Watch::peer_ended()
    std::function<bool()> peer_lost;   // Watch::peer_lost()
    std::function<bool()> writes;      // a checkpoint: it is waited for
    std::function<void(std::chrono::seconds unmoved)> end;
    std::chrono::milliseconds patience{10'000}, patience_if_lost{2'000};
  };
  explicit Sentinel(Self self);
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;
  ~Sentinel();  // not by `end`

 private:
  bool is_stuck() const;
  void run();

  const Self self_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace troupe
