#include "troupe/kernels/routing_plan/routing_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/kernels/routing_plan/geometry.h"

namespace troupe {
namespace {

constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

void validate(const PlanShape& s) {
  TROUPE_CHECK(0 <= s.tokens && 1 <= s.choices && 1 <= s.experts, "tokens", s.tokens, "choices",
               s.choices, "experts", s.experts);
  TROUPE_CHECK(1 <= s.alignment && 0 <= s.capacity && 0 <= s.tile_height, "alignment", s.alignment,
               "capacity", s.capacity, "tile height", s.tile_height);
  TROUPE_CHECK(s.experts <= kMaxIndex && s.choices <= kMaxIndex && s.alignment <= kMaxIndex &&
                   s.capacity <= kMaxIndex && s.tile_height <= kMaxIndex,
               "a size is not below 2^31: experts", s.experts, "choices", s.choices, "alignment",
               s.alignment, "capacity", s.capacity, "tile height", s.tile_height);
  TROUPE_CHECK(s.tokens <= kMaxIndex / s.choices, "slots are not below 2^31:", s.tokens, "tokens x",
               s.choices);
}

}  // namespace

int64_t row_bound(const PlanShape& s) {
  validate(s);
  const int64_t slots = s.tokens * s.choices;
  const int64_t longest = round_up(s.capacity, s.alignment);
  const int64_t used = std::min(s.experts, slots);
  TROUPE_CHECK(longest <= kMaxIndex / s.experts && s.alignment - 1 <= kMaxIndex / s.experts,
               "rows are not below 2^31:", s.experts, "experts, capacity", s.capacity, "alignment",
               s.alignment);
  const int64_t rows = s.capacity > 0
                           ? s.experts * longest
                           : (slots + used * (s.alignment - 1)) / s.alignment * s.alignment;
  TROUPE_CHECK(rows <= kMaxIndex, "rows are not below 2^31:", rows);
  return rows;
}

int64_t tile_bound(const PlanShape& s) {
  const int64_t rows = row_bound(s);
  return s.tile_height > 0 ? ceil_div(rows, s.tile_height) + s.experts : 0;
}

PlanRef RoutingPlan::read() const {
  return {.tokens = shape.tokens,
          .choices = shape.choices,
          .experts = shape.experts,
          .rows = row_bound(shape),
          .has_pads = shape.alignment > 1 || shape.capacity > 0,
          .expert_offset = expert_offset,
          .row_src = row_src,
          .row_slot = row_slot,
          .slot_row = slot_row,
          .counts = counts,
          .tile_height = shape.tile_height,
          .tile_list = tile_list,
          .tile_count = tile_count};
}

void validate(const RoutingPlan& a) {
  const int64_t rows = row_bound(a.shape);
  const bool slots = a.shape.tokens > 0;
  TROUPE_CHECK(a.ids != nullptr || !slots, "ids");
  TROUPE_CHECK(a.slot_row != nullptr || !slots, "slot_row");
  TROUPE_CHECK(a.counts != nullptr, "counts");
  TROUPE_CHECK(a.expert_offset != nullptr, "expert_offset");
  TROUPE_CHECK((a.row_src != nullptr && a.row_slot != nullptr) || rows == 0, "row_src, row_slot");
  const bool tiles = a.shape.tile_height > 0;
  TROUPE_CHECK((a.tile_list != nullptr && a.tile_count != nullptr) || !tiles, "tile_list");
}

int64_t bytes_moved(const RoutingPlan& a) {
  const int64_t slots = a.shape.tokens * a.shape.choices;
  return 8 * slots + 8 * row_bound(a.shape) + 12 * a.shape.experts + 8 * tile_bound(a.shape);
}

int64_t workspace_bytes(const RoutingPlan& a) {
  validate(a.shape);
  const plan::Chunks c = plan::chunks(a.shape);
  // Fused: a histogram a chunk. Else also one row of totals and one of tile offsets.
  return (c.count + (c.fused ? 0 : 2)) * a.shape.experts * int64_t{sizeof(int32_t)};
}

void routing_plan_ref(const RoutingPlan& a) {
  validate(a);
  const PlanShape& s = a.shape;
  std::vector<std::vector<int32_t>> slots_of(s.experts);  // By rising slot.
  for (int32_t slot = 0; slot < s.tokens * s.choices; ++slot) {
    a.slot_row[slot] = -1;
    if (0 <= a.ids[slot] && a.ids[slot] < s.experts) slots_of[a.ids[slot]].push_back(slot);
  }
  std::fill_n(a.row_slot, row_bound(s), -1);
  std::fill_n(a.row_src, row_bound(s), -1);
  int64_t overflow = 0;
  int32_t row = 0, tiles = 0;
  for (int32_t e = 0; e < s.experts; ++e) {
    const int64_t count = plan::placed(s, static_cast<int64_t>(slots_of[e].size()));
    overflow += static_cast<int64_t>(slots_of[e].size()) - count;
    a.counts[e] = count;
    a.expert_offset[e] = row;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t slot = slots_of[e][i];
      a.row_slot[row + i] = slot;
      a.row_src[row + i] = static_cast<int32_t>(slot / s.choices);
      a.slot_row[slot] = row + i;
    }
    const auto length = static_cast<int32_t>(plan::segment_length(s, count));
    for (int64_t i = 0; i < plan::segment_tiles(s, length); ++i, ++tiles) {
      a.tile_list[2 * tiles] = e;
      a.tile_list[2 * tiles + 1] = static_cast<int32_t>(row + i * s.tile_height);
    }
    row += length;
  }
  a.expert_offset[s.experts] = row;
  if (s.tile_height > 0) *a.tile_count = tiles;
  if (a.overflow != nullptr) *a.overflow = overflow;
}

}  // namespace troupe
