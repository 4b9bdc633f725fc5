// Histogram: how often each value occurs in each row of an integer array.
//
//   out[i, b] = how many j have x[i, j] == b,  b in [0, bins)
//
// Values outside [0, bins) are counted nowhere. The counts are exact, so they do not depend on the
// order of the threads. A row of no elements gives zeros.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/number/int_dtype.h"

namespace troupe {

struct Histogram {
  IntRef x;  // [rows, n]  n below 2^31
  int64_t bins = 0;
  int32_t* out = nullptr;  // [rows, bins]  out, overwritten
  bool generic = false;    // CUDA: no clusters, as on GPUs that have none
};

// How many blocks, which form a cluster, count a row together in one launch, where the code that a
// GPU runs was compiled for one that has clusters. 0: any number of blocks add to counts that are zeroed before, in two.
struct HistogramPlan {
  int64_t cluster_blocks = 0;
};
HistogramPlan choose_histogram_plan(const Histogram& args);

void validate(const Histogram& args);
int64_t bytes_moved(const Histogram& args);

void histogram_ref(const Histogram& args);
void histogram_cpu(const Histogram& args, const Pool& pool);
void histogram_cuda(const Histogram& args, cudaStream_t stream);

}  // namespace troupe
