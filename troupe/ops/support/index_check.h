// An operator's tensors of places, checked before a kernel reads with them: on the CPU before it
// begins; on a GPU by a kernel before it, without a wait (kernels/index_check).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "troupe/ops/support/plan.h"

namespace troupe {

struct Indices {
  std::string name;                    // of the operator and the argument: a refusal begins with it
  const at::Tensor& values;            // int32 or int64, of any sizes
  int64_t low, high;                   // both may be
  bool rising = false;                 // from low on
  const at::Tensor* offset = nullptr;  // of the segments whose rows `values` counts
  const at::Tensor* used = nullptr;    // its last number is how many of `values` are read
};
void check_indices(const std::vector<Indices>& all);

// Offsets [E + 1] of segments of `rows` rows.
void check_segments(const at::Tensor& offset, int64_t rows, const char* name);

// What permute reads of a plan; what combine and slot_dot do; what the experts' products do.
void check_row_maps(const Plan& plan, const char* op);
void check_slot_rows(const Plan& plan, const char* op);
void check_whole_plan(const Plan& plan, const char* op);

}  // namespace troupe
