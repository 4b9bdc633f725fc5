#include "troupe/kernels/binned_plan/binned_plan.h"

#include <algorithm>
#include <limits>

#include "troupe/core/check.h"
#include "troupe/kernels/binned_plan/segments.h"

namespace troupe {

void validate(const BinnedPlan& a) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  TROUPE_CHECK(a.tokens >= 0 && a.choices >= 1 && a.experts >= 1, "tokens", a.tokens, "choices",
               a.choices, "experts", a.experts);
  TROUPE_CHECK(a.tokens <= kMax / a.choices, "slots are not below 2^31:", a.tokens, "tokens x",
               a.choices);
  TROUPE_CHECK(a.rows >= 0 && a.rows <= kMax && a.num_indices >= 0 && a.num_indices <= kMax, "rows",
               a.rows, "indices", a.num_indices);
  TROUPE_CHECK(a.capacity >= 0 && (a.capacity == 0 || a.padded_bins == nullptr),
               "both capacity and padded_bins");
  TROUPE_CHECK(a.capacity == 0 || a.rows / a.experts >= a.capacity, "rows", a.rows, "for",
               a.experts, "experts of", a.capacity);
  TROUPE_CHECK(a.bins != nullptr && a.expert_offset != nullptr && a.counts != nullptr,
               "bins, expert_offset, counts");
  TROUPE_CHECK(a.indices != nullptr || a.num_indices == 0, "indices");
  TROUPE_CHECK((a.row_src != nullptr && a.row_slot != nullptr) || a.rows == 0, "row maps");
  TROUPE_CHECK(a.slot_row != nullptr || a.tokens == 0, "slot_row");
}

PlanRef BinnedPlan::read() const {
  return {.tokens = tokens,
          .choices = choices,
          .experts = experts,
          .rows = rows,
          .has_pads = true,
          .expert_offset = expert_offset,
          .row_src = row_src,
          .row_slot = row_slot,
          .slot_row = slot_row,
          .counts = counts};
}

int64_t bytes_moved(const BinnedPlan& a) {
  return 4 * a.num_indices + 8 * a.rows + 4 * a.tokens * a.choices + 16 * a.experts;
}

void binned_plan_ref(const BinnedPlan& a) {
  validate(a);
  std::fill_n(a.slot_row, a.tokens * a.choices, -1);
  std::fill_n(a.row_slot, a.rows, -1);
  std::fill_n(a.row_src, a.rows, -1);
  for (int64_t e = 0; e < a.experts; ++e) {
    const binned::Segment s = binned::segment(a, e);
    a.expert_offset[e] = static_cast<int32_t>(s.offset);
    a.counts[e] = s.count;
    for (int64_t j = 0; j < s.count; ++j) {
      const int32_t slot = binned::slot_of(a, s, j);
      if (slot < 0) continue;
      a.row_slot[s.offset + j] = slot;
      a.row_src[s.offset + j] = static_cast<int32_t>(slot / a.choices);
      a.slot_row[slot] = static_cast<int32_t>(s.offset + j);
    }
  }
  a.expert_offset[a.experts] = static_cast<int32_t>(binned::segment_begin(a, a.experts));
}

}  // namespace troupe
