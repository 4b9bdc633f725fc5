// Expert capacity: an expert takes at most C of the assignments that chose it (rules C2 to C5).
//
//   C = min(n, max(C_min, ceil(phi n K / E - 1e-6)))   n valid tokens; phi = 0: C = n, no drops
//
// Expert e keeps, of the slots s = t K + k with ids[s] == e,
//   probs     the C of largest weights[s]; ties go to the lower slot, hence the lower token
//   position  the C of lowest s
//   kept_ids[s]     = ids[s] where kept, else -1
//   kept_weights[s] = f_t weights[s] where kept, else 0
//   f_t             = 1, or with `renormalize` (sum of weights of t's routed slots) / (of its kept
//                     ones): what was dropped goes to the slots that stay; 0 where all were dropped
//   dropped         = how many routed slots were not kept
// Routed: ids[s] in [0, E). A NaN weight ranks as -inf.
//
// Backward, g = grad_kept_weights: without `renormalize` g where kept, else exactly 0. With it, for
// routed slots of token t, S and Q the two sums above, f = S / Q, d = sum of g weights over kept:
//   grad_weights[s] = kept[s] f g[s] + d / Q (1 - kept[s] f)     and 0 for all slots of t if Q == 0
//
// Counts for balance losses and biases are taken from `ids`, before dropping. The scope is the
// tokens given: a rank's own, or those of a group laid out rank-major. Deterministic.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

struct CapacityRule {
  double factor = 0;    // phi
  int64_t minimum = 1;  // C_min
};

// C for n = tokens.
int64_t capacity(const CapacityRule& rule, int64_t tokens, int64_t choices, int64_t experts);

enum class DropPolicy { kProbs, kPosition };

struct DropOverCapacity {
  PlanRef plan;                    // of `ids`, built without a capacity; any alignment
  const int32_t* ids = nullptr;    // [T, K]
  MatRef weights;                  // [T, K]  f32; on the CPU also f64
  const uint8_t* valid = nullptr;  // [T]     n counts its non-zeros; null: n = T
  CapacityRule rule;
  DropPolicy policy = DropPolicy::kProbs;
  bool renormalize = false;
  int32_t* kept_ids = nullptr;  // [T, K]  out
  MutRef kept_weights;          // [T, K]  out, as weights
  int64_t* dropped = nullptr;   // [1]     out
  void* workspace = nullptr;    // workspace_bytes(), 8-byte aligned; CUDA only
};

struct DropOverCapacityBackward {
  int64_t experts;
  const int32_t* ids = nullptr;       // [T, K]
  const int32_t* kept_ids = nullptr;  // [T, K]  forward's
  MatRef weights;                     // [T, K]
  MatRef grad_kept_weights;           // [T, K]
  bool renormalize = false;           // forward's
  MutRef grad_weights;                // [T, K]  out
};

void validate(const DropOverCapacity& args);
void validate(const DropOverCapacityBackward& args);
int64_t bytes_moved(const DropOverCapacity& args);
int64_t workspace_bytes(const DropOverCapacity& args);

void drop_over_capacity_ref(const DropOverCapacity& args);
void drop_over_capacity_cpu(const DropOverCapacity& args, const Pool& pool);
void drop_over_capacity_cuda(const DropOverCapacity& args, cudaStream_t stream);

void drop_over_capacity_backward_ref(const DropOverCapacityBackward& args);
void drop_over_capacity_backward_cpu(const DropOverCapacityBackward& args, const Pool& pool);
void drop_over_capacity_backward_cuda(const DropOverCapacityBackward& args, cudaStream_t stream);

}  // namespace troupe
