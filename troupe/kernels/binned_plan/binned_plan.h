// A routing plan from the metadata of MegaBlocks' operators, so that gather, scatter and their
// padded and binned forms are permute and combine over it (rule P4). `indices` are the slots t K +
// k sorted by expert (kernels/radix_sort), `bins` the inclusive sums of the experts' counts.
//
//   begin[e], count[e] = bins[e - 1] (0 for e = 0), bins[e] - bins[e - 1]
//   offset[e]          = bins[e - 1]           plain    gather, scatter
//                        padded_bins[e - 1]    padded   padded_gather, padded_scatter
//                        e C                   binned   binned_gather, binned_scatter: C rows each
//   row_slot[offset[e] + j] = indices[begin[e] + j]   for j < count[e] where the segment has room
//   row_slot of other rows  = -1;  row_src = row_slot / K;  slot_row inverse, -1 = no row
//   counts[e]               = rows of e that have a slot
//
// The segments end at `rows` at the latest. indices must differ; one outside [0, T K) has no row.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

struct BinnedPlan {
  int64_t tokens = 0;                    // T
  int64_t choices = 1;                   // K; T K below 2^31
  int64_t experts = 0;                   // E
  const int32_t* indices = nullptr;      // [n]
  int64_t num_indices = 0;               // n
  const int32_t* bins = nullptr;         // [E]
  const int32_t* padded_bins = nullptr;  // [E]; null: plain or binned
  int64_t capacity = 0;                  // C; 0: plain or padded
  int64_t rows = 0;                      // R: at least the segments' end; E C where binned
  int32_t* expert_offset = nullptr;      // [E + 1]  out
  int32_t* row_src = nullptr;            // [R]      out
  int32_t* row_slot = nullptr;           // [R]      out
  int32_t* slot_row = nullptr;           // [T, K]   out
  int64_t* counts = nullptr;             // [E]      out

  PlanRef read() const;
};

void validate(const BinnedPlan& args);
int64_t bytes_moved(const BinnedPlan& args);

void binned_plan_ref(const BinnedPlan& args);
void binned_plan_cpu(const BinnedPlan& args, const Pool& pool);
void binned_plan_cuda(const BinnedPlan& args, cudaStream_t stream);

}  // namespace troupe
