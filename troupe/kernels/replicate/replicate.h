// Replicate: spreads one value a bin over the elements of the bin.
//
//   out[i, j] = x[i, e]   for j in [bins[e - 1], bins[e]),  bins[-1] = 0
//   out[i, j] = 0         for j >= bins[E - 1]
//   backward: grad_x[i, e] = sum of grad_out[i, j] over j of bin e, by rising j
//
// bins are the inclusive sums of the bins' sizes. Forward moves elements of 2, 4 or 8 bytes,
// whatever they mean. Backward sums in float (double for f64), rounded once; the order of the sum
// depends on the bin alone.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

struct Replicate {
  const void* x = nullptr;    // [rows, E]
  int64_t element_bytes = 0;  // 2, 4 or 8
  int64_t rows = 0;
  int64_t experts = 0;            // E
  const int32_t* bins = nullptr;  // [E]  not falling
  void* out = nullptr;            // [rows, n]  out
  int64_t outputs = 0;            // n
};

struct ReplicateBackward {
  MatRef grad_out;                // [rows, n]
  const int32_t* bins = nullptr;  // [E]
  MutRef grad_x;                  // [rows, E]  out, as grad_out
};

void validate(const Replicate& args);
void validate(const ReplicateBackward& args);
int64_t bytes_moved(const Replicate& args);

void replicate_ref(const Replicate& args);
void replicate_cpu(const Replicate& args, const Pool& pool);
void replicate_cuda(const Replicate& args, cudaStream_t stream);

void replicate_backward_ref(const ReplicateBackward& args);
void replicate_backward_cpu(const ReplicateBackward& args, const Pool& pool);
void replicate_backward_cuda(const ReplicateBackward& args, cudaStream_t stream);

}  // namespace troupe
