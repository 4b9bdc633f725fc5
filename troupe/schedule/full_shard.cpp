#include "troupe/schedule/full_shard.h"

#include <set>

#include "troupe/core/check.h"
#include "troupe/schedule/compute_order.h"

namespace troupe {
namespace {

struct Visit {
  int owner;
  std::vector<Action> steps = {};
  size_t next = 0;  // the visit that uses the same parameters next; 0: none
};

std::vector<Visit> visits_of(const StepWork& work, const std::vector<int>& owner) {
  std::vector<Visit> out;
  std::vector<int> last(owner.size(), -1);  // each owner's latest visit
  for (const Action& step : compute_order(work)) {
    const int o = owner[step.chunk];
    if (out.empty() || out.back().owner != o) {
      if (last[o] >= 0) out[last[o]].next = out.size();
      last[o] = static_cast<int>(out.size());
      out.push_back({o});
    }
    out.back().steps.push_back(step);
  }
  return out;
}

}  // namespace

Schedule FullShard::build(const StepWork& work) const {
  TROUPE_CHECK(work.ranks == 1, "a replica's chunks run all in each rank, not in", work.ranks);
  if (prefetch < 0) fail(Code::kBadValue, "prefetch", prefetch, "is less than 0");
  const std::vector<int> owner = owners(work);
  const std::vector<Visit> visits = visits_of(work, owner);
  std::set<int> tied;
  for (const auto& [a, b] : work.tied) tied.insert(owner[b]);
  const auto ahead = static_cast<size_t>(prefetch);
  const auto stays = [&](size_t v) {
    const Visit& now = visits[v];
    if (now.next == 0) return false;
    const bool same_microbatch =
        visits[now.next].steps.front().microbatch == now.steps.back().microbatch;
    return now.next <= v + 1 + ahead || (same_microbatch && (!reshard || tied.contains(now.owner)));
  };

  std::vector<Action> list;
  std::set<int> present;
  size_t asked = 0;  // visits whose parameters are there or on their way
  for (size_t v = 0; v < visits.size(); ++v) {
    for (; asked < visits.size() && asked <= v + ahead; ++asked) {
      const int o = visits[asked].owner;
      if (present.insert(o).second) list.push_back({Kind::kGather, o});
    }
    std::vector<Action> sums;  // of the visit's last computation, issued after the chunk is freed
    for (const Action& step : visits[v].steps) {
      list.insert(list.end(), sums.begin(), sums.end());
      sums.clear();
      list.push_back(step);
      // Backward goes down, so of tied chunks the first is the last to finish.
      const bool done = step.kind == Kind::kBackward && owner[step.chunk] == step.chunk;
      if (done && reduce_each) sums.push_back({Kind::kReduce, step.chunk, step.microbatch});
      if (done && !reduce_each && step.microbatch == work.microbatches - 1) {
        sums.push_back({Kind::kReduce, step.chunk});
      }
    }
    if (!stays(v)) {
      list.push_back({Kind::kFree, visits[v].owner});
      present.erase(visits[v].owner);
    }
    list.insert(list.end(), sums.begin(), sums.end());
  }
  list.push_back({Kind::kUpdate});
  if (work.snapshot) list.push_back({Kind::kSnapshot});
  return {list};
}

}  // namespace troupe
