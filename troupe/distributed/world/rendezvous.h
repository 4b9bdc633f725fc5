// Rendezvous of all ranks through a key-value store, which may still hold keys of an earlier one.
// - Rank 0 writes its own process to "lead". That is the name of this rendezvous: a prefix of its
// keys.
// - Rank r writes its process to LEAD/here/r, and again if the lead changes.
// - Rank 0 reads all of them once they exist and writes the list to LEAD/met.
// - Rank r reads the list. One of another size is of a run before, or of another, and is not taken.
// Each rank reads and writes a constant number of values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/distributed/world/key_value_store.h"

namespace troupe {

struct Rendezvous {
  std::string name;                    // unique: a prefix for the keys of this run
  std::vector<std::string> processes;  // of all ranks
};

struct RendezvousOptions {
  int64_t rank = 0, size = 1;
  std::string process;  // this one
  std::string place;    // "host:port", for messages
  std::chrono::milliseconds timeout{300'000};
  std::function<void()> check = {};  // called while polling; may throw
  // Rank 0 serves the store, so a rank that is there already belongs to another run.
  bool first_serves = true;
};

// Throws E6002: which ranks did not arrive, or are there already, or that the store is gone.
Rendezvous rendezvous(KeyValueStore& store, const RendezvousOptions& options);

}  // namespace troupe
