// Where a group's rows are, as the CPU and the CUDA path share it.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/core/number/fp8_scale.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/fp8/fp8.h"

namespace troupe {

struct Fp8Rows {
  int64_t begin, end;  // of x; empty where no group has this row of scales
};

// The rows of x whose scales are in row g. Parts of offset: the last expert e whose first row of
// scales, offset[e] / rows + e, is not past g.
TROUPE_HOST_DEVICE inline Fp8Rows fp8_rows(const Fp8Groups& groups, int64_t R, int64_t g) {
  int64_t part_begin = 0, part_end = R, first = 0;
  if (groups.offset != nullptr) {
    int64_t low = 0, high = groups.experts;  // the answer is in [low, high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (groups.offset[middle] / groups.rows + middle <= g ? low : high) = middle;
    }
    part_begin = groups.offset[low];
    part_end = groups.offset[low + 1];
    first = part_begin / groups.rows + low;
  } else if (groups.part_rows > 0) {
    const int64_t each = ceil_div(groups.part_rows, groups.rows);
    part_begin = g / each * groups.part_rows;
    part_end = part_begin + groups.part_rows;
    first = g / each * each;
  }
  const int64_t begin = part_begin + (g - first) * groups.rows;
  if (begin >= part_end) return {0, 0};
  return {begin, begin + groups.rows < part_end ? begin + groups.rows : part_end};
}

// Which of `largest` is that of the part that begins at or before row `begin` of x.
TROUPE_HOST_DEVICE inline int64_t fp8_part(const Fp8Groups& groups, int64_t begin) {
  return groups.part_rows > 0 ? begin / groups.part_rows : 0;
}

}  // namespace troupe
