// Where an expert's rows are and where its indices begin: what all paths share.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/kernels/binned_plan/binned_plan.h"

namespace troupe::binned {

struct Segment {
  int64_t offset, end;  // rows
  int64_t begin;        // of its indices
  int64_t count;        // rows that have a slot
};

TROUPE_HOST_DEVICE inline int64_t clamped(int64_t at, int64_t low, int64_t high) {
  return at < low ? low : at > high ? high : at;
}

TROUPE_HOST_DEVICE inline int64_t segment_begin(const BinnedPlan& a, int64_t e) {
  if (a.capacity > 0) return clamped(e * a.capacity, 0, a.rows);
  const int32_t* ends = a.padded_bins != nullptr ? a.padded_bins : a.bins;
  return e == 0 ? 0 : clamped(ends[e - 1], 0, a.rows);
}

TROUPE_HOST_DEVICE inline Segment segment(const BinnedPlan& a, int64_t e) {
  const int64_t offset = segment_begin(a, e), end = segment_begin(a, e + 1);
  const int64_t begin = e == 0 ? 0 : clamped(a.bins[e - 1], 0, a.num_indices);
  const int64_t count = clamped(a.bins[e], begin, a.num_indices) - begin;
  return {offset, end, begin, clamped(count, 0, end > offset ? end - offset : 0)};
}

// The slot of the segment's j-th row, or -1.
TROUPE_HOST_DEVICE inline int32_t slot_of(const BinnedPlan& a, const Segment& s, int64_t j) {
  if (j >= s.count) return -1;
  const int32_t slot = a.indices[s.begin + j];
  return 0 <= slot && slot < a.tokens * a.choices ? slot : -1;
}

}  // namespace troupe::binned
