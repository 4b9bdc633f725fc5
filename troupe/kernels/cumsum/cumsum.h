// Cumulative sums along the rows of an integer array.
//
//   inclusive  out[i, j] = x[i, 0] + ... + x[i, j]
//   exclusive  out[i, j] = x[i, 0] + ... + x[i, j - 1],  0 for j = 0
//
// In the type of x, modulo its size: exact, hence the same for any split of the work. out may be x.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/number/int_dtype.h"

namespace troupe {

struct Cumsum {
  IntRef x;  // [rows, n]
  bool exclusive = false;
  IntMut out;                 // [rows, n]  out, as x
  void* workspace = nullptr;  // workspace_bytes(), 8-byte aligned; CUDA only
};

void validate(const Cumsum& args);
int64_t bytes_moved(const Cumsum& args);
int64_t workspace_bytes(const Cumsum& args);

inline constexpr int64_t kCumsumTile = 4096;  // Elements of a row that a CUDA block takes.

void cumsum_ref(const Cumsum& args);
void cumsum_cpu(const Cumsum& args, const Pool& pool);
void cumsum_cuda(const Cumsum& args, cudaStream_t stream);

}  // namespace troupe
