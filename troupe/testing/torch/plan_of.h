// A routing plan by plain loops, for tests that need one and do not test its making.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "troupe/ops/plan.h"

namespace troupe::testing {

// ids [T, K] int32 on the CPU; segments rounded up to a multiple of `alignment`.
inline Plan plan_of(const at::Tensor& ids_TK, int64_t experts, int64_t alignment = 1) {
  const at::Tensor ids = ids_TK.contiguous();
  const int64_t slots = ids.numel(), bound = slots + experts * (alignment - 1);
  Plan p{.expert_offset = at::zeros({experts + 1}, at::kInt),
         .row_src = at::full({bound}, -1, at::kInt),
         .row_slot = at::full({bound}, -1, at::kInt),
         .slot_row = at::full(ids.sizes(), -1, at::kInt),
         .counts = at::zeros({experts}, at::kLong)};
  auto* offset = p.expert_offset.mutable_data_ptr<int32_t>();
  int32_t row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    offset[e] = row;
    for (int64_t s = 0; s < slots; ++s) {
      if (ids.const_data_ptr<int32_t>()[s] != e) continue;
      p.row_src.mutable_data_ptr<int32_t>()[row] = static_cast<int32_t>(s / ids.size(1));
      p.row_slot.mutable_data_ptr<int32_t>()[row] = static_cast<int32_t>(s);
      p.slot_row.mutable_data_ptr<int32_t>()[s] = row++;
      ++p.counts.mutable_data_ptr<int64_t>()[e];
    }
    row = static_cast<int32_t>((row + alignment - 1) / alignment * alignment);
  }
  offset[experts] = row;
  return p;
}

}  // namespace troupe::testing
