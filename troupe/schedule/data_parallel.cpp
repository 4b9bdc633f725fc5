#include "troupe/schedule/data_parallel.h"

#include "troupe/schedule/sharing.h"

namespace troupe {

Schedule DataParallel::build(const StepWork& work) const {
  Schedule out = work_lists(work);
  for (std::vector<Action>& list : out) {
    list = with_reductions(list, work, true);
    add_update(list, work, sharded);
  }
  return out;
}

}  // namespace troupe
