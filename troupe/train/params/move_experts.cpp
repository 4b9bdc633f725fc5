#include "troupe/train/params/move_experts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Which local rows go to each rank of the group, and where those that come are put.
class Journey {
 public:
  Journey(const ExpertMove& move, int64_t rank) {
    const std::vector<int64_t> now = move.from.held_by(rank), then = move.to.held_by(rank);
    TROUPE_CHECK(now.size() == then.size(), "a rank would hold", then.size(), "experts instead of",
                 now.size());
    place_.resize(then.size());
    int64_t come = 0;
    for (int64_t r = 0; r < move.from.ranks(); ++r) {
      const size_t sent = send_.size();
      const int64_t before = come;
      for (size_t i = 0; i < now.size(); ++i) {
        if (move.to.owners(now[i])[0] == r) send_.push_back(static_cast<int64_t>(i));
      }
      for (size_t i = 0; i < then.size(); ++i) {
        if (move.from.owners(then[i])[0] == r) place_[i] = come++;
      }
      to_.push_back(static_cast<int64_t>(send_.size() - sent));
      from_.push_back(come - before);
    }
  }

  // x [experts of this rank, ..] as it is to be; ranks call in the same order.
  at::Tensor moved(ProcessGroup& experts, const at::Tensor& x) const {
    const auto indices = x.options().dtype(at::kLong);
    const at::Tensor out = x.index_select(0, at::tensor(send_, indices));
    const at::Tensor in = at::empty_like(out);
    experts.all_to_all(in, out, from_, to_).wait();
    return in.index_select(0, at::tensor(place_, indices));
  }

 private:
  std::vector<int64_t> send_, place_, to_, from_;
};

// The parameter's elements in `buffer`, one expert a row.
at::Tensor rows_of(const Param& p, const at::Tensor& buffer, int64_t offset) {
  const auto held = static_cast<int64_t>(p.experts.size());
  return buffer.narrow(0, offset, p.numel()).view({held, held > 0 ? p.numel() / held : 0});
}

using Journeys = std::map<const Param*, Journey>;

void move_bucket(ParamStore& store, Bucket& b, const std::vector<int64_t>& members,
                 const Journeys& routes, ProcessGroup& experts) {
  ProcessGroup& owners = *b.mesh.shard;
  TROUPE_CHECK(b.scales.empty(), "moments in codes have blocks that do not end with an expert");
  std::vector<at::Tensor> buffers = b.state;
  for (const at::Tensor& x : b.masters()) buffers.push_back(x);
  for (const at::Tensor& own : buffers) {
    const at::Tensor here = own.detach().to(b.own.device());  // copies state that is on the host
    const at::Tensor whole = at::empty({b.size}, here.options());
    owners.all_gather({whole}, {here}).wait();
    for (const int64_t m : members) {
      const ParamStore::Slot& slot = store.slots()[static_cast<size_t>(m)];
      const Param& p = *slot.named.param;
      const at::Tensor rows = rows_of(p, whole, slot.offset);
      rows.copy_(routes.at(&p).moved(experts, rows));
    }
    own.detach().copy_(whole.narrow(0, b.own_from, b.own_size));
  }
  if (b.has_master()) b.own.detach().copy_(b.master);
  b.stale = true;
}

}  // namespace

void move_experts(ParamStore& store, ProcessGroup& experts, const std::vector<ExpertMove>& moves) {
  const at::NoGradGuard no_grad;
  Journeys routes;
  for (const ExpertMove& move : moves) {
    const Journey route(move, experts.rank());
    for (const Param* p : move.params) routes.emplace(p, route);
  }
  std::vector<int64_t> changed;
  for (Bucket& b : store.buckets()) {
    std::vector<int64_t> members;
    std::ranges::copy_if(b.members, std::back_inserter(members), [&](int64_t m) {
      return routes.contains(store.slots()[static_cast<size_t>(m)].named.param);
    });
    if (members.empty()) continue;
    move_bucket(store, b, members, routes, experts);
    if (!b.dropped_between_uses) changed.push_back(&b - store.buckets().data());
  }
  for (const NamedParam& other : store.others()) {
    const auto route = routes.find(other.param);
    if (route == routes.end()) continue;
    for (const at::Tensor& x : other.param->stored()) {
      const auto held = static_cast<int64_t>(other.param->experts.size());
      const at::Tensor rows = x.detach().view({held, held > 0 ? x.numel() / held : 0});
      rows.copy_(route->second.moved(experts, rows));
    }
  }
  store.gather(changed);
  store.need(changed);
}

}  // namespace troupe
