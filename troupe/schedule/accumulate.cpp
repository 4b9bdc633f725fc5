#include "troupe/schedule/accumulate.h"

#include "troupe/core/check.h"
#include "troupe/schedule/sharing.h"

namespace troupe {

Schedule Accumulate::build(const StepWork& work) const {
  TROUPE_CHECK(work.replicas == 1, "the schedule accumulate is for one replica, not",
               work.replicas);
  Schedule out = work_lists(work);
  for (std::vector<Action>& list : out) {
    list = with_reductions(list, work, false);
    add_update(list, work, false);
  }
  return out;
}

}  // namespace troupe
