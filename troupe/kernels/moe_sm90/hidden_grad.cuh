// What `hidden` has in common for operands of 16 and of 8 bits: what its epilogue is given, and the
// gradient of the routing weights out of the column tiles' partial sums.
#pragma once

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe::sm90 {

// Args: MoeHiddenGradSm90 or MoeHiddenGradFp8Sm90.
template <class Args>
SwigluBackward::Params swiglu_backward(const Args& a, int box_rows = 64) {
  const int64_t units = a.a.cols, rows = a.plan.rows;
  return {rows_map(a.h.data, rows, 2 * units, kUnits, box_rows),
          rows_map(a.grad_h.data, rows, 2 * units, kUnits, box_rows),
          rows_map(a.a.data, rows, units, kUnits, box_rows),
          static_cast<Bits16*>(a.grad_h.data),
          static_cast<Bits16*>(a.a.data),
          static_cast<float*>(a.workspace),
          static_cast<uint32_t>(units),
          static_cast<int>(ceil_div(units, kTileN)),
          a.score,
          a.plan.row_slot};
}

// One thread a slot; the partial sums of its row in the order of the column tiles.
static __global__ void __launch_bounds__(256)
    reduce_scores_kernel(const float* partial, int tiles, const int32_t* slot_row, int64_t slots,
                         float* grad_score) {
  const int64_t slot = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (slot >= slots) return;
  const int64_t row = slot_row[slot];
  float sum = 0;
  for (int i = 0; row >= 0 && i < tiles; ++i) sum += partial[row * tiles + i];
  grad_score[slot] = sum;
}

template <class Args>
void reduce_scores(const Args& a, cudaStream_t stream) {
  const int64_t slots = a.plan.tokens * a.plan.choices;
  if (slots == 0) return;
  reduce_scores_kernel<<<static_cast<unsigned>(ceil_div(slots, 256)), 256, 0, stream>>>(
      static_cast<const float*>(a.workspace), static_cast<int>(ceil_div(a.h.cols / 2, kTileN)),
      a.plan.slot_row, slots, a.grad_score);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe::sm90
