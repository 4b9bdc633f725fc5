// Numbers that are read as places, checked before they are: indices, offsets and counts that an
// operator was given. Number i of a span is at fault where
//
//   v[i] < low  or  v[i] > high
//   v[0] > low  or  v[i] < v[i - 1]      with `rising`: v are offsets of segments
//   v[i] > offset[i + 1] - offset[i]     with `offset`: v counts rows of segments
//
// and with `used` where i < used[0] alone: what is behind nobody reads.
//
// faults[s] = how many numbers of span s are at fault. Without `faults` none may be: the CPU path
// throws an Error that names the first; the CUDA path prints those that it finds and fails a
// device-side assertion, as PyTorch's own index checks do. Kernels behind it do not run, and the
// next call that waits for the device returns cudaErrorAssert; nothing waits here. Integers alone,
// so every path counts the same. An empty span has no fault.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"

namespace troupe {

struct IndexSpan {
  const char* name = "";       // begins the message of a fault
  const void* data = nullptr;  // [size]
  bool wide = false;           // int64; else int32
  int64_t size = 0;
  int64_t low = 0, high = 0;  // both may be
  bool rising = false;
  const int32_t* offset = nullptr;  // [size + 1] or none
  const int32_t* used = nullptr;    // [1] or none
};

struct IndexCheck {
  static constexpr int kMost = 5;
  IndexSpan spans[kMost];
  int count = 0;
  int32_t* faults = nullptr;  // [count]  out, or none
};

void validate(const IndexCheck& args);
int64_t bytes_moved(const IndexCheck& args);

void index_check_ref(const IndexCheck& args);  // counts
void index_check_cpu(const IndexCheck& args, const Pool& pool);
void index_check_cuda(const IndexCheck& args, cudaStream_t stream);

}  // namespace troupe
