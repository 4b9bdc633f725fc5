// Topology: the column of each nonzero block of a block-diagonal sparse matrix, whose diagonal
// blocks belong to experts: rows of expert e times the C block columns of expert e.
//
//   bin of block row i  = the e with padded_bins[e - 1] <= i B < padded_bins[e]; padded_bins[-1]: 0
//   out[i C + c]        = e C + c      block rows i = 0 .. block_rows-1, block columns c = 0 .. C-1
//   out[i C + c]        = -1           for block rows past padded_bins[E - 1]
//
// padded_bins are the inclusive sums of the experts' rows, each rounded up to B. Indices are int32
// and counts 64-bit: 32,767 blocks are no bound.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"

namespace troupe {

struct Topology {
  const int32_t* padded_bins = nullptr;  // [E]
  int64_t experts = 0;                   // E; E C below 2^31
  int64_t block = 0;                     // B
  int64_t block_rows = 0;
  int64_t block_columns = 0;  // C
  int32_t* out = nullptr;     // [block_rows, C]  out
};

void validate(const Topology& args);
int64_t bytes_moved(const Topology& args);

void topology_ref(const Topology& args);
void topology_cpu(const Topology& args, const Pool& pool);
void topology_cuda(const Topology& args, cudaStream_t stream);

}  // namespace troupe
