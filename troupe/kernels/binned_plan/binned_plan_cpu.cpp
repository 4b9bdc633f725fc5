// The CPU path: experts in parallel; their rows and slots are disjoint.
#include <algorithm>

#include "troupe/kernels/binned_plan/binned_plan.h"
#include "troupe/kernels/binned_plan/segments.h"

namespace troupe {

void binned_plan_cpu(const BinnedPlan& a, const Pool& pool) {
  validate(a);
  std::fill_n(a.slot_row, a.tokens * a.choices, -1);
  const int64_t end = binned::segment_begin(a, a.experts);
  a.expert_offset[a.experts] = static_cast<int32_t>(end);
  std::fill(a.row_slot + end, a.row_slot + a.rows, -1);
  std::fill(a.row_src + end, a.row_src + a.rows, -1);
  pool(a.experts, 1, [&](int64_t first, int64_t last) {
    for (int64_t e = first; e < last; ++e) {
      const binned::Segment s = binned::segment(a, e);
      a.expert_offset[e] = static_cast<int32_t>(s.offset);
      a.counts[e] = s.count;
      for (int64_t j = 0; j < s.end - s.offset; ++j) {
        const int32_t slot = binned::slot_of(a, s, j);
        a.row_slot[s.offset + j] = slot;
        a.row_src[s.offset + j] = slot < 0 ? -1 : static_cast<int32_t>(slot / a.choices);
        if (slot >= 0) a.slot_row[slot] = static_cast<int32_t>(s.offset + j);
      }
    }
  });
}

}  // namespace troupe
