#include "troupe/schedule/data_parallel.h"

#include "troupe/core/check.h"
#include "troupe/schedule/compute_order.h"

namespace troupe {

Schedule DataParallel::build(const StepWork& work) const {
  TROUPE_CHECK(work.ranks == 1, "a replica is whole in each rank, not in", work.ranks);
  const std::vector<int> owner = owners(work);
  std::vector<Action> list;
  for (const Action& step : compute_order(work)) {
    list.push_back(step);
    // Backward goes down, so of tied chunks the first is the last to finish.
    const bool last = step.kind == Kind::kBackward && step.microbatch == work.microbatches - 1;
    if (last && owner[step.chunk] == step.chunk) list.push_back({Kind::kReduce, step.chunk});
  }
  list.push_back({Kind::kUpdate});
  for (int c = 0; sharded && c < work.chunks; ++c) {
    if (owner[c] == c) list.push_back({Kind::kGather, c});
  }
  if (work.snapshot) list.push_back({Kind::kSnapshot});
  return {list};
}

}  // namespace troupe
