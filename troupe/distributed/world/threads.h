// What the ranks of a run share that are threads of one process (WorldOptions::threads): their
// groups (distributed/group/thread_backend.h) and a key-value store in memory.
//
//   auto threads = std::make_shared<Threads>();
//   // in thread r of n:
//   World world(LauncherEnvironment{.rank = r, .size = n}, c10::kCPU, {.threads = threads});
//
// On the CPU alone: autograd runs a graph of the CPU in the thread that asks, but one of a GPU in a
// thread that all ranks would share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/key_value_store.h"

namespace troupe {

class ThreadRanks;

class MemoryStore : public KeyValueStore {
 public:
  void post(const std::string& key, const std::string& text) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override;
  std::string read(const std::string& key, std::chrono::milliseconds timeout) override;
  std::string claim(const std::string& key, const std::string& text) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
};

struct Threads {
  Threads();
  std::shared_ptr<ThreadRanks> ranks;
  std::shared_ptr<MemoryStore> store;
  std::atomic<bool> ended = false;  // a rank ended by itself: nobody waits for it
  void abandon(const std::string& why);
};

}  // namespace troupe
