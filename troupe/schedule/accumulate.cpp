#include "troupe/schedule/accumulate.h"

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {

Schedule Accumulate::build(const StepWork& work) const {
  TROUPE_CHECK(work.ranks == 1, "the schedule accumulate is for one rank, not", work.ranks);
  Schedule out(1);
  const auto again = [&](int chunk) {
    return std::find(work.recomputed.begin(), work.recomputed.end(), chunk) !=
           work.recomputed.end();
  };
  for (int m = 0; m < work.microbatches; ++m) {
    for (int c = 0; c < work.chunks; ++c) {
      out[0].push_back({again(c) ? Kind::kForwardLight : Kind::kForward, c, m});
    }
    for (int c = work.chunks; c-- > 0;) {
      if (again(c)) out[0].push_back({Kind::kForward, c, m});
      out[0].push_back({Kind::kBackward, c, m});
    }
  }
  out[0].push_back({Kind::kUpdate});
  if (work.snapshot) out[0].push_back({Kind::kSnapshot});
  return out;
}

}  // namespace troupe
