// Host arithmetic of the routing plan that its paths share: how long a segment is, and how the CUDA
// path cuts the slots into chunks.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe::plan {

// How many of an expert's slots get a row.
TROUPE_HOST_DEVICE inline int64_t placed(const PlanShape& s, int64_t slots) {
  return s.capacity > 0 && slots > s.capacity ? s.capacity : slots;
}

// Rows of the segment of an expert with `count` placed slots.
TROUPE_HOST_DEVICE inline int64_t segment_length(const PlanShape& s, int64_t count) {
  return round_up(s.capacity > 0 ? s.capacity : count, s.alignment);
}

TROUPE_HOST_DEVICE inline int64_t segment_tiles(const PlanShape& s, int64_t length) {
  return s.tile_height > 0 ? ceil_div(length, s.tile_height) : 0;
}

inline constexpr int kMaxFusedExperts = 1024;  // One thread an expert in the fused kernel.
inline constexpr int kTileSlots = 2048;        // Slots a block of the fused kernel takes at once.
inline constexpr int kMaxChunks = 256;
inline constexpr int64_t kMaxCounters = int64_t{1} << 22;  // 16 MB of workspace, with many experts

// Chunk i holds slots [i slots_per_chunk, (i + 1) slots_per_chunk); there is at least one.
struct Chunks {
  bool fused;  // two launches, prefix inside the second; else the path for many experts
  int64_t count;
  int64_t slots_per_chunk;
};

inline Chunks chunks(const PlanShape& s) {
  const int64_t slots = s.tokens * s.choices;
  const bool fused = s.experts <= kMaxFusedExperts;
  const int64_t unit = fused ? kTileSlots : 32;
  const int64_t units = ceil_div(slots, unit) > 0 ? ceil_div(slots, unit) : 1;
  const int64_t room = kMaxCounters / s.experts > 0 ? kMaxCounters / s.experts : 1;
  const int64_t units_per_chunk = ceil_div(units, room < kMaxChunks ? room : kMaxChunks);
  return {fused, ceil_div(units, units_per_chunk), units_per_chunk * unit};
}

}  // namespace troupe::plan
