// The routing plan: where each (token, expert) assignment has its row in the buffer that is packed
// by expert, and back. Built once a forward from the chosen experts; every kernel over routed rows
// reads it, forward and backward. No float is in it, so it is the same bits on every path.
//
//   slot          = t K + k; its expert is ids[t, k]; an id outside [0, E) has no row (-1: masked)
//   counts[e]     = how many slots have expert e                        (with capacity: at most C)
//   length[e]     = counts[e], with capacity C, rounded up to a multiple of `alignment`
//   expert_offset = exclusive prefix sum of length; segment e = rows [offset[e], offset[e + 1])
//   row_slot[r]   = the (r - offset[e])-th slot, in rising order, of those with expert e
//                   -1 in pad rows, which end a segment, and in rows [offset[E], rows)
//   row_src[r]    = row_slot[r] / K, or -1
//   slot_row[s]   = the row r with row_slot[r] == s, or -1
//   tile_list     = (e, first row) of each tile of `tile_height` rows, by rising row; a tile starts
//                   at its segment's start plus a multiple of the height and ends with the segment
//                   at the latest. Pad rows are covered like others.
//
// Order (rule P1): rows are ordered (expert, source rank, source token, k). That is the order of
// slots within an expert where the source tokens are rank-major (all of rank 0, then of rank 1,
// ...); under expert parallelism a receive buffer is laid out so, and the plan needs no rank.
// Alignment (P3) and capacity (C6) add pad rows, which counts never include. With `capacity` C
// every segment has exactly C rows (rounded up to the alignment), so offsets are known on the host;
// slots past the C-th of their expert get no row and are counted in `overflow` (kernels/capacity
// chooses better which to drop, before). A token may name an expert twice: it then has two rows
// (that such a choice is refused, rule E22, is the router's matter).
//
// Sizes: T K and the row bound must be below 2^31 (checked). T = 0 gives offsets and counts of 0.
// All outputs are overwritten whole. Deterministic: no order depends on atomics or on thread
// timing.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"

namespace troupe {

// The plan as other kernels read it. On CUDA all pointers are device pointers, and the true number
// of rows, expert_offset[E], is not known to the host: kernels treat rows r < expert_offset[E]
// only.
struct PlanRef {
  int64_t tokens = 0;                      // T: rows of the buffer that row_src points into
  int64_t choices = 0;                     // K
  int64_t experts = 0;                     // E
  int64_t rows = 0;                        // the host's bound on expert_offset[E]; pads included
  bool has_pads = false;                   // may rows below expert_offset[E] be pads?
  const int32_t* expert_offset = nullptr;  // [E + 1]
  const int32_t* row_src = nullptr;        // [rows]
  const int32_t* row_slot = nullptr;       // [rows]
  const int32_t* slot_row = nullptr;       // [T K]
  const int64_t* counts = nullptr;         // [E]
  int64_t tile_height = 0;                 // 0: no tile list
  const int32_t* tile_list = nullptr;      // [2 tile_bound]  pairs (expert, first row)
  const int32_t* tile_count = nullptr;     // [1]
};

// What the sizes of a plan follow from; `row_bound` and `tile_bound` are the host's arithmetic.
struct PlanShape {
  int64_t tokens;
  int64_t choices;
  int64_t experts;
  int64_t alignment = 1;    // each segment is a multiple of this many rows
  int64_t capacity = 0;     // C, or 0: segments as long as they need to be
  int64_t tile_height = 0;  // 0: no tile list
};

int64_t row_bound(const PlanShape& shape);   // elements of row_src and row_slot
int64_t tile_bound(const PlanShape& shape);  // pairs in tile_list: ceil(row_bound / height) + E

struct RoutingPlan {
  PlanShape shape;
  const int32_t* ids = nullptr;      // [T, K]
  int64_t* counts = nullptr;         // [E]           out
  int32_t* expert_offset = nullptr;  // [E + 1]       out
  int32_t* row_src = nullptr;        // [row_bound]   out
  int32_t* row_slot = nullptr;       // [row_bound]   out
  int32_t* slot_row = nullptr;       // [T, K]        out
  int32_t* tile_list = nullptr;      // [tile_bound, 2] out; may be null without tile_height
  int32_t* tile_count = nullptr;     // [1]           out; may be null without tile_height
  int64_t* overflow = nullptr;  // [1]           out, may be null: slots without room (capacity)
  void* workspace = nullptr;    // workspace_bytes(), 16-byte aligned; CUDA only

  PlanRef read() const;
};

void validate(const RoutingPlan& args);
int64_t bytes_moved(const RoutingPlan& args);
int64_t workspace_bytes(const RoutingPlan& args);

void routing_plan_ref(const RoutingPlan& args);
void routing_plan_cpu(const RoutingPlan& args, const Pool& pool);
void routing_plan_cuda(const RoutingPlan& args, cudaStream_t stream);

}  // namespace troupe
