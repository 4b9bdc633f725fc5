// Sinkhorn's choice of experts (R12): the K largest of z + v, where v [E] and u [T] make
//
//   P[t, e] = exp(z[t, e] + u[t] + v[e])    with rows of sum 1 / n and columns of sum 1 / E
//
// over the n valid tokens. From v = 0, by turns, in the log domain:
//   u[t] = -ln n - ln sum_e exp(z[t, e] + v[e])
//   v[e] = -ln E - ln sum_t exp(z[t, e] + u[t])
// until the mean of |change of v| over e is at most `tolerance`, which may be negative (never), or
// for max_iterations. `iterations` is how many were done.
//   ids[t, :]  the K experts of largest f32(x - max x), x = z[t, :] + v, largest first; ties go to
//              the lower id
// The weights are the router's matter (kernels/route with given_ids); no gradient goes through u
// and v. After an iteration the columns are exact, and the rows as good as the tolerance.
//
// An invalid token has ids -1 and u 0 and takes no part. Nor does a row with a NaN or +inf, though
// its ids are distinct and in range; n counts it. A column that is -inf throughout keeps
// v = 0. T = 0 or n = 0: v = 0, no iterations.
//
// z + v + u is formed in f64, so that neither a shift of all logits nor one logit of 1e4 costs the
// others their digits; exponentials are f32 (f64 for f64 logits, on the CPU), summed over chunks
// that T alone decides: the same bits for any number of threads and blocks. Nothing over- or
// underflows: a column whose sum is too small for floats is summed again relative to its maximum.
// CUDA: one launch, cooperative; stopping early is decided on the device.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

struct Sinkhorn {
  MatRef logits;  // [T, E]  f32, bf16, f16; on the CPU also f64
  int64_t choices = 1;
  const uint8_t* valid = nullptr;  // [T]
  float tolerance = 1e-4f;
  int64_t max_iterations = 100;
  int32_t* ids = nullptr;         // [T, K]  out
  MutRef u;                       // [1, T]  out, f32 (f64 beside f64 logits)
  MutRef v;                       // [1, E]  out
  int32_t* iterations = nullptr;  // [1]     out
  void* workspace = nullptr;      // workspace_bytes(), 16-byte aligned; CUDA only
};

void validate(const Sinkhorn& args);
int64_t bytes_moved(const Sinkhorn& args);  // of one iteration
int64_t workspace_bytes(const Sinkhorn& args);

void sinkhorn_ref(const Sinkhorn& args);
void sinkhorn_cpu(const Sinkhorn& args, const Pool& pool);
void sinkhorn_cuda(const Sinkhorn& args, cudaStream_t stream);

}  // namespace troupe
