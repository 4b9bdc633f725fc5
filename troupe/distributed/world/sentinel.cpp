#include "troupe/distributed/world/sentinel.h"

#include <algorithm>
#include <utility>

namespace troupe {

using std::chrono::milliseconds;

Sentinel::Sentinel(Self self) : self_(std::move(self)), thread_([this] { run(); }) {}

Sentinel::~Sentinel() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Sentinel::is_stuck() const {
  const RankStatus now = self_.pulse.now();
  const std::chrono::nanoseconds unmoved(steady_now() - now.since);
  const bool lost = self_.peer_lost(), ended = self_.peer_ended();
  const milliseconds patience = lost ? self_.patience_if_lost : self_.patience;
  return (lost || ended) && needs_all_ranks(now.phase) && unmoved >= patience && !self_.writes();
}

// Twice in a row, in one place: between two looks the training thread might come out of it.
void Sentinel::run() {
  const milliseconds pause = std::max(self_.patience_if_lost / 10, milliseconds(1));
  int64_t place = -1;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [&] { return stop_; })) {
    const bool stuck = is_stuck();
    const int64_t since = self_.pulse.now().since;
    if (stuck && since == place) {
      const std::chrono::nanoseconds unmoved(steady_now() - since);
      return self_.end(std::chrono::duration_cast<std::chrono::seconds>(unmoved));
    }
    place = stuck ? since : -1;
  }
}

}  // namespace troupe
