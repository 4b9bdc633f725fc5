#include "troupe/ops/support/run.h"

#include <ATen/Parallel.h>

namespace troupe {

Pool torch_pool() {
  return [](int64_t n, int64_t grain, const Range& range) {
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { range(begin, end); });
  };
}

}  // namespace troupe
