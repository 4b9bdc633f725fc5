// Quantile balancing's statistic of one microbatch (R11): where the threshold of each expert should
// are so that it gets its share. Over the n valid tokens of the logits z [T, E]:
//
//   alpha[t]  the (K + 1)-th largest of z[t, :] - beta
//   next[e]   the (floor(n K / E) + 1)-th largest over t of z[t, e] - alpha[t]
//
// Both are order statistics, hence elements: exact, the same bits on every path. Differences are
// rounded to f32 (f64 beside f64 logits, on the CPU). A row whose alpha is not finite (NaN ranks as
// -inf) takes no part and is not counted. n = 0: next is beta. The caller averages over
// microbatches and ranks, mixes with the old beta and subtracts the mean; the tokens are those of
// one rank, or of a group laid out rank after rank.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

struct Quantile {
  MatRef logits;                   // [T, E]  f32, bf16, f16; on the CPU also f64
  int64_t choices = 1;             // K < E
  const float* beta = nullptr;     // [E]
  const uint8_t* valid = nullptr;  // [T]
  float* next = nullptr;           // [E]  out; beta's place is allowed
  void* workspace = nullptr;       // workspace_bytes(), 16-byte aligned; CUDA only
};

void validate(const Quantile& args);
int64_t bytes_moved(const Quantile& args);
int64_t workspace_bytes(const Quantile& args);

void quantile_ref(const Quantile& args);
void quantile_cpu(const Quantile& args, const Pool& pool);
void quantile_cuda(const Quantile& args, cudaStream_t stream);

}  // namespace troupe
