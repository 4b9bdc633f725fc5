// Whether one number is at fault: what all paths share.
#pragma once

#include "troupe/core/host_device.h"
#include "troupe/kernels/index_check/index_check.h"

namespace troupe::index_detail {

TROUPE_HOST_DEVICE inline int64_t number(const IndexSpan& s, int64_t i) {
  return s.wide ? static_cast<const int64_t*>(s.data)[i] : static_cast<const int32_t*>(s.data)[i];
}

// Offsets may be at fault themselves: their difference is taken in 64 bits.
TROUPE_HOST_DEVICE inline bool at_fault(const IndexSpan& s, int64_t i) {
  if (s.used != nullptr && i >= s.used[0]) return false;
  const int64_t v = number(s, i);
  if (v < s.low || v > s.high) return true;
  if (s.rising && (i == 0 ? v > s.low : v < number(s, i - 1))) return true;
  return s.offset != nullptr && v > int64_t{s.offset[i + 1]} - s.offset[i];
}

}  // namespace troupe::index_detail
