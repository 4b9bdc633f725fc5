#include "troupe/ops/support/cpu_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>

#include "troupe/core/device/memory_region.h"

namespace troupe {
namespace {

constexpr size_t kLarge = size_t{1} << 18;

// Large blocks from a region, others as PyTorch has them.
class LargeBlocks : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* block = bytes < kLarge ? nullptr : region().allocate(static_cast<int64_t>(bytes));
    if (block == nullptr) block = others()->raw_allocate(bytes);
    return {block, block, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  // PyTorch keeps an allocator, and a deleter that is a plain function, as long as the process
  // lives.
  static MemoryRegion& region() {
    static auto* const region = new MemoryRegion(most_bytes());
    return *region;
  }
  // Takes as many addresses as there is memory; where they are limited others need them more.
  static int64_t most_bytes() {
    struct rlimit limit = {};
    if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return 0;
    return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  }
  static c10::Allocator* others() { return c10::GetDefaultCPUAllocator(); }
  static void release(void* block) {
    region().holds(block) ? region().release(block) : others()->raw_deallocate(block);
  }
};

}  // namespace

void keep_large_tensors_together() {
  static auto* const allocator = new LargeBlocks;
  c10::SetCPUAllocator(allocator);
}

at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor out = at::empty(sizes, options);
#ifdef __linux__
  constexpr size_t kPage = size_t{1} << 21;
  if (out.is_cpu() && out.nbytes() >= 2 * kPage) {
    char* start = static_cast<char*>(out.data_ptr());
    const size_t skip = -reinterpret_cast<uintptr_t>(start) % kPage;  // to the first whole page
    // Advice: where it is refused the tensor is as good, only slower to touch.
    (void)madvise(start + skip, (out.nbytes() - skip) / kPage * kPage, MADV_HUGEPAGE);
  }
#endif
  return out;
}

}  // namespace troupe
