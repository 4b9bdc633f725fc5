// Permute: copies each token's row to the rows of the experts it goes to.
//
//   out[r, :] = w_r x[row_src[r], :]    for r < expert_offset[E]; w_r = weights[row_slot[r]], or 1
//   out[r, :] = 0                       in pad rows (row_src[r] = -1)
//
// Without weights a copy, bit for bit; with them one product in float (double for f64), rounded
// once. Rows at or past expert_offset[E] are not written. Backward, for g = grad_out:
//   grad_x       = combine of g with the same weights        (kernels/combine)
//   grad_weights = slot_dot of g and x                       (kernels/slot_dot)
// and permute is in turn the backward of combine: grad_y[r] = w_r grad_out[row_src[r]].
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

struct Permute {
  PlanRef plan;
  MatRef x;             // [T, D]
  MatRef weights = {};  // [T, K]  f32, f64 where x is f64; no data: 1
  MutRef out;           // [R, D]  out, as x
  bool clear_tail = false;
};

void validate(const Permute& args);
int64_t bytes_moved(const Permute& args);  // x once, as many rows of out as the bound allows

void permute_ref(const Permute& args);
void permute_cpu(const Permute& args, const Pool& pool);
void permute_cuda(const Permute& args, cudaStream_t stream);

}  // namespace troupe
