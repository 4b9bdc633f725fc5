#include "troupe/schedule/sharing.h"

#include "troupe/schedule/compute_order.h"
#include "troupe/schedule/transfers.h"

namespace troupe {

Schedule work_lists(const StepWork& work) {
  return with_transfers(compute_order(work), work);
}

std::vector<int> last_gradients(const std::vector<Action>& list, const std::vector<int>& owner) {
  std::vector<int> out(owner.size(), -1);
  for (size_t i = 0; i < list.size(); ++i) {
    const bool adds = list[i].kind == Kind::kBackward || list[i].kind == Kind::kBackwardWeight;
    if (adds) out[owner[list[i].chunk]] = static_cast<int>(i);
  }
  return out;
}

std::vector<Action> with_reductions(const std::vector<Action>& list, const StepWork& work,
                                    bool all) {
  const std::vector<int> owner = owners(work), last = last_gradients(list, owner);
  const std::vector<bool> several = owners_on_several_ranks(work);
  std::vector<Action> out, sum;  // a reduction follows the sends of the same computation
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& a = list[i];
    const bool beside = i > 0 && list[i - 1].beside;
    if (a.kind != Kind::kSend && !beside)
      out.insert(out.end(), sum.begin(), sum.end()), sum.clear();
    out.push_back(a);
    const int o = owner[a.chunk];
    if (all && last[o] == static_cast<int>(i) && !several[o]) sum.push_back({Kind::kReduce, o});
  }
  out.insert(out.end(), sum.begin(), sum.end());
  for (int o = 0; o < work.chunks; ++o) {
    if (several[o] && last[o] >= 0) out.push_back({Kind::kReduce, o});
  }
  return out;
}

void add_update(std::vector<Action>& list, const StepWork& work, bool gathers) {
  if (!work.training) return;
  const std::vector<int> last = last_gradients(list, owners(work));
  list.push_back({Kind::kUpdate});
  for (int c = 0; gathers && c < work.chunks; ++c) {
    if (last[c] >= 0) list.push_back({Kind::kGather, c});
  }
  if (work.snapshot) list.push_back({Kind::kSnapshot});
}

}  // namespace troupe
