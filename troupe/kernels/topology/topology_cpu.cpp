// The CPU path: a range of block rows finds its first expert once and then walks on.
#include <algorithm>
#include <numeric>

#include "troupe/kernels/topology/topology.h"

namespace troupe {

void topology_cpu(const Topology& a, const Pool& pool) {
  validate(a);
  const int64_t C = a.block_columns;
  pool(a.block_rows, 64, [&](int64_t begin, int64_t end) {
    const int32_t* bins_end = a.padded_bins + a.experts;
    int64_t e = std::upper_bound(a.padded_bins, bins_end, begin * a.block) - a.padded_bins;
    for (int64_t i = begin; i < end; ++i) {
      while (e < a.experts && a.padded_bins[e] <= i * a.block) ++e;
      int32_t* row = a.out + i * C;
      if (e < a.experts) {
        std::iota(row, row + C, static_cast<int32_t>(e * C));
      } else {
        std::fill_n(row, C, -1);
      }
    }
  });
}

}  // namespace troupe
