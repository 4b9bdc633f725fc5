#include "troupe/kernels/topology/topology.h"

#include <limits>

#include "troupe/core/check.h"

namespace troupe {

void validate(const Topology& a) {
  TROUPE_CHECK(a.experts >= 1 && a.block >= 1, "experts", a.experts, "block", a.block);
  TROUPE_CHECK(a.block_rows >= 0 && a.block_columns >= 0, "block rows", a.block_rows, "columns",
               a.block_columns);
  TROUPE_CHECK(a.block_columns <= std::numeric_limits<int32_t>::max() / a.experts,
               "block columns are not below 2^31:", a.experts, "experts x", a.block_columns);
  TROUPE_CHECK(a.block_rows <= std::numeric_limits<int32_t>::max(), "block rows", a.block_rows);
  TROUPE_CHECK(a.padded_bins != nullptr, "padded_bins");
  TROUPE_CHECK(a.out != nullptr || a.block_rows * a.block_columns == 0, "out");
}

int64_t bytes_moved(const Topology& a) {
  return 4 * (a.block_rows * a.block_columns + a.experts);
}

void topology_ref(const Topology& a) {
  validate(a);
  for (int64_t i = 0; i < a.block_rows; ++i) {
    int64_t e = 0;
    while (e < a.experts && a.padded_bins[e] <= i * a.block) ++e;
    for (int64_t c = 0; c < a.block_columns; ++c) {
      const int64_t column = e < a.experts ? e * a.block_columns + c : -1;
      a.out[i * a.block_columns + c] = static_cast<int32_t>(column);
    }
  }
}

}  // namespace troupe
