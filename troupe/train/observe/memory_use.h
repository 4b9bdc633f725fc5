// What a process uses of the memory that bounds it: the device's where it computes on one, else the
// host's.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>

namespace troupe {

struct MemoryUse {
  int64_t allocated = 0;  // bytes of tensors now; on the CPU the resident set
  int64_t reserved = 0;   // and what the allocator keeps beside them
  int64_t peak = 0;       // the most that was ever allocated
  int64_t total = 0;      // what there is in all
  int64_t retries = 0;    // how often the allocator had to give memory back to go on; CUDA alone
};
MemoryUse memory_use(const c10::Device& device);

// A step frees what the next one asks for again. From now on, to be called before the first tensor,
// it is kept and not given back to the system page by page, large tensors apart from small things.
void keep_freed_memory();

// Whether what was thrown says that the host or the device has no memory left.
bool is_out_of_memory(const std::exception& error);

}  // namespace troupe
