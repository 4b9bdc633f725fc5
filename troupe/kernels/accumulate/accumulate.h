// Sums in f32 of numbers of a narrower type: gradients of several microbatches, or laid into the
// buffer that ranks add up.
//
//   sum[i] = x[i]             exact
//   sum[i] = sum[i] + x[i]    with `add`: one rounding to f32
//
// x is f32, bf16 or f16. Every element is on its own: a NaN stays where it is, and the bits depend
// on nothing else. x empty: nothing is written. x and sum do not overlap.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

struct Accumulate {
  MatRef x;              // [1, N]  contiguous
  float* sum = nullptr;  // [N]     out
  bool add = false;      // to what `sum` holds
};

void validate(const Accumulate& args);        // throws on a broken contract; every path calls it
int64_t bytes_moved(const Accumulate& args);  // the roofline's numerator

void accumulate_ref(const Accumulate& args);                        // plain
void accumulate_cpu(const Accumulate& args, const Pool& pool);      // what CPU runs use
void accumulate_cuda(const Accumulate& args, cudaStream_t stream);  // asynchronous

}  // namespace troupe
