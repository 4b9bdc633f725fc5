#include "troupe/train/observe/memory_use.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <sstream>
#include <string>
#include <string_view>

#include "troupe/ops/support/cpu_memory.h"
#include "troupe/train/observe/run_files.h"

namespace troupe {
namespace {

// Resident pages of the program's file and its libraries. All processes share them and the kernel may drop them; how many
// are resident depends on the kernel (what it maps around a page that is touched: 75 or 115 MB of PyTorch).
int64_t resident_file_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && name == "RssFile:") return kib * 1024;
  }
  return 0;
}

MemoryUse of_host() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const int64_t of_files = resident_file_bytes();
  const int64_t resident = std::max<int64_t>(resident_bytes() - of_files, 0);
  return {.allocated = resident,
          .reserved = resident,
          .peak = std::max(int64_t{usage.ru_maxrss} * 1024 - of_files, resident),
          .total = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE)};
}

}  // namespace

MemoryUse memory_use(const c10::Device& device) {
  if (device.is_cpu()) return of_host();
  at::globalContext().lazyInitDevice(device.type());  // Else the allocator knows no device.
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  constexpr size_t kAll = 0;  // small and large blocks together
  const auto stats = allocator.getDeviceStats(device.index());
  return {.allocated = stats.allocated_bytes.at(kAll).current,
          .reserved = stats.reserved_bytes.at(kAll).current,
          .peak = stats.allocated_bytes.at(kAll).peak,
          .total = static_cast<int64_t>(allocator.getMemoryInfo(device.index()).second),
          .retries = stats.num_alloc_retries};
}

void keep_freed_memory() {
  keep_large_tensors_together();
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
}

bool is_out_of_memory(const std::exception& error) {
  // PyTorch's CPU allocator throws no type of its own for this.
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

}  // namespace troupe
