// A stable sort of integers by their low bits, with the permutation that it is.
//
//   key(v)     = the low end_bit bits of v, as an unsigned number; with end_bit = the type's width
//                v itself, negative values first
//   indices    = 0 .. n-1 ordered by (key(x[i]), i)
//   out[j]     = x[indices[j]]
//
// With E experts end_bit = max(ceil(log2 E), 1) suffices: one pass for up to 256 of
// them. Digits of 8 bits, least first; integer counts alone, so the result is the same bits on
// every path. x is not changed and must not overlap out.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/number/int_dtype.h"

namespace troupe {

struct RadixSort {
  IntRef x;                    // [1, n]  n below 2^31
  int end_bit = 0;             // 1 .. the type's width
  IntMut out;                  // [1, n]  out, as x
  int32_t* indices = nullptr;  // [n]  out
  void* workspace = nullptr;   // workspace_bytes(), 8-byte aligned; CUDA only
};

void validate(const RadixSort& args);
int64_t bytes_moved(const RadixSort& args);
int64_t workspace_bytes(const RadixSort& args);

void radix_sort_ref(const RadixSort& args);
void radix_sort_cpu(const RadixSort& args, const Pool& pool);
void radix_sort_cuda(const RadixSort& args, cudaStream_t stream);

}  // namespace troupe
