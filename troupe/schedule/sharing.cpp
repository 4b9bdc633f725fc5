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

namespace {

// Of each owner the position behind which its gradients are whole, or on their way to be; -1: none.
std::vector<int> closing_positions(const std::vector<Action>& list, const StepWork& work) {
  std::vector<int> out = last_gradients(list, owners(work));
  for (int& position : out) {
    if (position >= 0 && list[static_cast<size_t>(position)].beside) ++position;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == Kind::kReduce) {
      out[static_cast<size_t>(list[i].chunk)] = static_cast<int>(i);
    }
  }
  return out;
}

}  // namespace

std::vector<Action> with_unit_updates(const std::vector<Action>& list, const StepWork& work) {
  const std::vector<int> closing = closing_positions(list, work);
  std::vector<Action> out, waiting;  // for the next reduction
  for (size_t i = 0; i < list.size(); ++i) {
    const bool sum = list[i].kind == Kind::kReduce;
    out.push_back(list[i]);
    if (sum) out.insert(out.end(), waiting.begin(), waiting.end()), waiting.clear();
    for (int o = 0; o < work.chunks; ++o) {
      if (closing[static_cast<size_t>(o)] != static_cast<int>(i)) continue;
      (sum ? waiting : out).push_back({Kind::kUpdate, o});
    }
  }
  out.insert(out.end(), waiting.begin(), waiting.end());
  return out;
}

void add_update(std::vector<Action>& list, const StepWork& work, bool gathers) {
  if (!work.training) return;
  const std::vector<int> last = last_gradients(list, owners(work));
  if (work.updates_in_backward) list = with_unit_updates(list, work);
  list.push_back({Kind::kUpdate});
  for (int c = 0; gathers && c < work.chunks; ++c) {
    if (last[c] >= 0) list.push_back({Kind::kGather, c});
  }
  if (work.snapshot) list.push_back({Kind::kSnapshot});
}

}  // namespace troupe
