// RMSNorm and LayerNorm over the columns of each row, with an optional addition before.
//
//   s[r, :]   = x[r, :] + residual[r, :]            rounded to the type; no residual: x itself
//   mean[r]   = LayerNorm: sum_d s[r, d] / D        RMSNorm: 0
//   rstd[r]   = 1 / sqrt(sum_d (s[r, d] - mean[r])^2 / D + eps)
//   n[r, d]   = (s[r, d] - mean[r]) rstd[r]         rounded to the type if round_before_weight
//   y[r, d]   = n[r, d] weight[d] + bias[d]         no bias: 0
//
//   backward, given G = the gradient of y, with a = G weight:
//   grad_s[r, d]   = rstd[r] (a[r, d] - n[r, d] sum_j a n / D - mean_j(a)) + grad_sum[r, d]
//                    mean_j(a) = sum_j a[r, j] / D in LayerNorm, 0 in RMSNorm; no grad_sum: 0
//   grad_weight[d] = sum_r G[r, d] n[r, d]
//   grad_bias[d]   = sum_r G[r, d]
//
// Shapes: R rows, D columns. grad_s is the gradient of x and of residual alike; grad_sum is what
// came to s by the way around the norm. Statistics and sums are float (double for f64), results
// rounded once. grad_weight and grad_bias are sums over fixed ranges of rows, added in order: the
// same bits for any number of threads, in every run. Memory: y may be x, sum may be x or residual,
// grad_s may be grad_y or grad_sum; nothing else overlaps.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

enum class NormKind : uint8_t { kRms, kLayer };

struct Norm {
  MatRef x;              // [R, D]
  MatRef weight;         // [1, D]  of x's type
  MutRef y;              // [R, D]  out
  MatRef residual = {};  // [R, D]  or none
  MutRef sum = {};       // [R, D]  out: s; with a residual
  MatRef bias = {};      // [1, D]  or none
  MutRef mean = {};      // [R, 1]  out, float (double for f64); LayerNorm only, or none
  MutRef rstd = {};      // [R, 1]  out, or none
  NormKind kind = NormKind::kRms;
  float eps = 1e-5f;
  bool round_before_weight = false;  // as Llama's code does: the product is of two rounded numbers
};

struct NormBackward {
  MatRef s;                   // [R, D]  what was normalized
  MatRef weight;              // [1, D]
  MatRef rstd;                // [R, 1]
  MatRef grad_y;              // [R, D]
  MutRef grad_s;              // [R, D]  out
  MutRef grad_weight = {};    // [1, D]  out, float (double for f64), or none
  MutRef grad_bias = {};      // [1, D]  out, or none
  MatRef mean = {};           // [R, 1]  LayerNorm only
  MatRef grad_sum = {};       // [R, D]  or none
  void* workspace = nullptr;  // workspace_bytes(args), on sixteen bytes
  NormKind kind = NormKind::kRms;
  bool round_before_weight = false;
};

void validate(const Norm& args);  // throws on a broken contract; every path calls it
void validate(const NormBackward& args);
int64_t bytes_moved(const Norm& args);  // the roofline's numerator
int64_t bytes_moved(const NormBackward& args);
int64_t workspace_bytes(const NormBackward& args);

// The ranges of rows whose sums are formed alone: each of rows_per_range rows, the last may be
// short.
struct NormRanges {
  int64_t count, rows_per_range;
};
NormRanges norm_ranges(int64_t rows);

void norm_ref(const Norm& args);                        // the formula in double: for tests
void norm_cpu(const Norm& args, const Pool& pool);      // what CPU runs use
void norm_cuda(const Norm& args, cudaStream_t stream);  // asynchronous, allocates nothing

void norm_backward_ref(const NormBackward& args);
void norm_backward_cpu(const NormBackward& args, const Pool& pool);
void norm_backward_cuda(const NormBackward& args, cudaStream_t stream);

}  // namespace troupe
