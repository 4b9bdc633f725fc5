// All-gather of texts through the key-value store.
//   rank r   writes ROUND/r
//   rank 0   reads all of them once they exist, and writes ROUND/all
// Each rank reads and writes two values; reading all from all would take ranks^2.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/key_value_store.h"

namespace troupe {

struct TextAllGather {
  int64_t rank = 0, size = 1;
  std::string topic;  // for messages
  std::string round;  // a prefix that no earlier call had
  // Absent: waits as long as the missing ranks are alive, whatever they do.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Without a timeout: how long the heartbeat of a missing rank may pause before it counts as
  // lost.
  std::chrono::milliseconds silence{600'000};
  // Whether that rank is known to have exited. True for this rank: it has posted its last text and
  // waits for no other.
  std::function<bool(int64_t rank)> has_ended;
};

// The texts in rank order. E6001 as soon as a rank that has not written is known to have exited or
// has no heartbeat any more, and after the timeout, naming the first rank that is missing.
std::vector<std::string> all_gather_texts(KeyValueStore& store, const TextAllGather& gathering,
                                          const std::string& mine);

}  // namespace troupe
