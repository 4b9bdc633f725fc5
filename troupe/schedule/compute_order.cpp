#include "troupe/schedule/compute_order.h"

#include <algorithm>

namespace troupe {

std::vector<Action> compute_order(const StepWork& work) {
  std::vector<Action> out;
  const auto again = [&](int chunk) {
    return std::find(work.recomputed.begin(), work.recomputed.end(), chunk) !=
           work.recomputed.end();
  };
  for (int m = 0; m < work.microbatches; ++m) {
    for (int c = 0; c < work.chunks; ++c) {
      out.push_back({again(c) ? Kind::kForwardLight : Kind::kForward, c, m});
    }
    for (int c = work.chunks; c-- > 0;) {
      if (again(c)) out.push_back({Kind::kForward, c, m});
      out.push_back({Kind::kBackward, c, m});
    }
  }
  return out;
}

}  // namespace troupe
