#include "troupe/schedule/accumulate.h"

#include "troupe/core/check.h"
#include "troupe/schedule/compute_order.h"

namespace troupe {

Schedule Accumulate::build(const StepWork& work) const {
  TROUPE_CHECK(work.ranks == 1 && work.replicas == 1,
               "the schedule accumulate is for one rank, not", work.ranks, "x", work.replicas);
  std::vector<Action> list = compute_order(work);
  list.push_back({Kind::kUpdate});
  if (work.snapshot) list.push_back({Kind::kSnapshot});
  return {list};
}

}  // namespace troupe
