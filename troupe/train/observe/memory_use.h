// Memory use of this process: the device's if it computes on a GPU, else the host's.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>

namespace troupe {

struct MemoryUse {
  int64_t allocated = 0;  // bytes of tensors; on the CPU the resident set, without pages of files
  int64_t reserved = 0;   // allocated, and cached by the allocator
  int64_t peak = 0;       // maximum of `allocated`
  int64_t total = 0;      // memory of the device or host
  int64_t retries = 0;    // how often the allocator flushed its cache to succeed; CUDA only
};
MemoryUse memory_use(const c10::Device& device);

// Keeps freed memory for the next step instead of returning it to the system; large tensors are
// kept apart from small ones. Call before the first tensor is created.
void keep_freed_memory();

// Whether an exception means that the host or the device is out of memory.
bool is_out_of_memory(const std::exception& error);

}  // namespace troupe
