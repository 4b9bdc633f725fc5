// Combine: sums each token's rows over its experts.
//
//   out[t, :] = sum over k of w[t, k] y[slot_row[t, k], :]  + addend[t, :]
//
// Slots are added in the order k = 0 .. K-1, then the addend, in float (double for f64), and the
// sum is rounded once (rule P2); a slot without a row (-1) adds nothing; w = 1 without weights. No
// buffer of [T, K, D], no atomics. Rows at or past expert_offset[E] are not read. Every element of
// out is written: 0 where a token has no row.
//
// Backward, for g = grad_out: grad_y = permute of g with the same weights (kernels/permute),
// grad_weights = slot_dot of y and g (kernels/slot_dot), grad_addend = g.
// Combine is in turn the backward of permute; the addend is then what else flows into x (from
// the router).
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

struct Combine {
  PlanRef plan;
  MatRef y;             // [R, D]
  MatRef weights = {};  // [T, K]  f32, f64 where y is f64; no data: 1
  MatRef addend = {};   // [T, D]  as y, or f32; no data: nothing is added
  MutRef out;           // [T, D]  out, as y
};

void validate(const Combine& args);
int64_t bytes_moved(const Combine& args);  // as many rows of y as the bound allows, out once

void combine_ref(const Combine& args);
void combine_cpu(const Combine& args, const Pool& pool);
void combine_cuda(const Combine& args, cudaStream_t stream);

}  // namespace troupe
