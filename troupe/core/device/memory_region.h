// Large blocks of memory side by side in a region of their own. Small blocks are never between
// them, so that what they leave is whole again once neighbors are free, and the region grows to
// little more than the most that was in use at once. It keeps what it has for the next block: a
// page is faulted in once. Pages are large ones where the system grants them on request.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace troupe {

class MemoryRegion {
 public:
  // Reserves addresses for `most_bytes`, or as many as the system grants, and no memory yet.
  explicit MemoryRegion(int64_t most_bytes);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  // On 64 bytes; null where nothing is left. By any thread.
  void* allocate(int64_t bytes);
  void release(void* block);  // one that it gave
  bool holds(const void* block) const { return begin_ <= block && block < end_; }
  int64_t bytes() const;  // from the first to the last byte that was ever in use

 private:
  bool grow(int64_t bytes);

  char *begin_ = nullptr, *top_ = nullptr, *end_ = nullptr;  // usable up to top_
  std::map<char*, int64_t> free_;                            // no two are neighbors
  std::unordered_map<void*, int64_t> used_;
  mutable std::mutex mutex_;
};

}  // namespace troupe
