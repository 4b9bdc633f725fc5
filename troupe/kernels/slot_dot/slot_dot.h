// The gradient of a combine weight: the dot product of a slot's row with its token's row.
//
//   out[t, k] = sum over d of rows[slot_row[t, k], d] x[t, d];  0 where slot_row[t, k] = -1
//
// As backward of combine rows is y and x is grad_out; as backward of permute with weights rows is
// grad_out and x is x. Sums in float (double for f64), in an order that depends on D alone. Rows at
// or past expert_offset[E] are not read.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

struct SlotDot {
  PlanRef plan;
  MatRef rows;  // [R, D]
  MatRef x;     // [T, D]  as rows
  MutRef out;   // [T, K]  out; f32, f64 where x is f64
};

void validate(const SlotDot& args);
int64_t bytes_moved(const SlotDot& args);

void slot_dot_ref(const SlotDot& args);
void slot_dot_cpu(const SlotDot& args, const Pool& pool);
void slot_dot_cuda(const SlotDot& args, cudaStream_t stream);

}  // namespace troupe
