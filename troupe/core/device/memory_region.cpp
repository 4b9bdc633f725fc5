#include "troupe/core/device/memory_region.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>

#include "troupe/core/number/round.h"

namespace troupe {
namespace {

constexpr int64_t kLine = 64, kPage = int64_t{1} << 21;

}  // namespace

MemoryRegion::MemoryRegion(int64_t most_bytes) {
  for (int64_t bytes = round_up(most_bytes, kPage); bytes >= kPage; bytes /= 2) {
    // Without access it counts as nobody's memory.
    void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) continue;
    begin_ = top_ = static_cast<char*>(at);
    end_ = begin_ + bytes;
    (void)::madvise(at, bytes, MADV_HUGEPAGE);  // advice: refused, memory is only slower to touch
    return;
  }
}

MemoryRegion::~MemoryRegion() {
  if (begin_ != nullptr) ::munmap(begin_, end_ - begin_);
}

// Makes the last free block, which ends at top_, one of at least so many bytes.
bool MemoryRegion::grow(int64_t bytes) {
  const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
  char* const from = last != free_.end() && last->first + last->second == top_ ? last->first : top_;
  const int64_t more = round_up(bytes - (top_ - from), kPage);
  if (more > end_ - top_) return false;
  if (::mprotect(top_, more, PROT_READ | PROT_WRITE) != 0) return false;
  top_ += more;
  free_[from] = top_ - from;
  return true;
}

void* MemoryRegion::allocate(int64_t bytes) {
  // Lines between blocks, so that equal ones do not begin at equal places of the cache's sets.
  const int64_t need = round_up(bytes, kLine) + kLine;
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const auto& block) { return block.second >= need; };
  auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) {
    if (!grow(need)) return nullptr;
    found = std::prev(free_.end());
  }
  const auto [at, size] = *found;
  free_.erase(found);
  if (size > need) free_[at + need] = size - need;
  used_[at] = need;
  return at;
}

void MemoryRegion::release(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(block);
  assert(found != used_.end());
  auto own = free_.emplace(static_cast<char*>(block), found->second).first;
  used_.erase(found);
  const auto next = std::next(own);
  if (next != free_.end() && own->first + own->second == next->first) {
    own->second += next->second;
    free_.erase(next);
  }
  if (own == free_.begin()) return;
  const auto before = std::prev(own);
  if (before->first + before->second == own->first) {
    before->second += own->second;
    free_.erase(own);
  }
}

int64_t MemoryRegion::bytes() const {
  const std::lock_guard lock(mutex_);
  return top_ - begin_;
}

}  // namespace troupe
