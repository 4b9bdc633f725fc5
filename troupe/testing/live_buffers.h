// The memory of all Buffers of a test program (backend.h), so that what a call wrote can be compared
// with what it writes a second time (replay_gate.h).
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace troupe::testing {

class LiveBuffers {
 public:
  static LiveBuffers& of_process() {
    static LiveBuffers all;
    return all;
  }

  void add(void* at, size_t bytes) {
    const std::lock_guard lock(mutex_);
    sizes_[static_cast<char*>(at)] = bytes;
  }
  void remove(void* at) {
    const std::lock_guard lock(mutex_);
    sizes_.erase(static_cast<char*>(at));
  }

  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    size_t all = 0;
    for (const auto& [at, size] : sizes_) all += size;
    return all;
  }

  // Buffers in the order of their addresses.
  using Contents = std::vector<std::vector<char>>;
  Contents contents() const {
    const std::lock_guard lock(mutex_);
    Contents out;
    for (const auto& [at, size] : sizes_) out.emplace_back(at, at + size);
    return out;
  }
  // No Buffer was made or went since `contents` were taken.
  void restore(const Contents& contents) {
    const std::lock_guard lock(mutex_);
    auto from = contents.begin();
    for (const auto& [at, size] : sizes_) {
      if (size > 0) std::memcpy(at, from->data(), size);
      ++from;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::map<char*, size_t> sizes_;
};

}  // namespace troupe::testing
