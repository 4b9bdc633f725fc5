#include "troupe/distributed/dispatch/all_gather_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "troupe/distributed/dispatch/copies.h"
#include "troupe/distributed/dispatch/group_dispatcher.h"
#include "troupe/distributed/dispatch/return_sums.h"
#include "troupe/distributed/group/host_copy.h"

namespace troupe {
namespace {

struct GatherLease : GroupLease {
  Travelling routing, x;  // from send() to rows()
  int64_t capacity = 0;   // of all ranks together
  int64_t slots = 0;      // rows that each rank sends back: the largest T, times K for kExact
  int64_t most = 0;       // the largest T of a rank; 1 at least
};

class AllGatherDispatcher : public GroupDispatcher<GatherLease> {
 public:
  AllGatherDispatcher(std::shared_ptr<ProcessGroup> ranks, const ExpertPlacement& placement,
                      DispatchMode mode, WireType wire)
      : GroupDispatcher("all-gather", std::move(ranks), placement, mode, wire) {}

  void send(const Handle& handle) override {
    GatherLease& lease = of(handle);
    begin_to_send(lease);
    const Routed& routed = lease.routed;
    const at::Tensor x_TD = std::exchange(lease.x_TD, {});
    lease.capacity = agree(lease, routed);
    const at::Tensor scores = routed.scores_TK.detach().contiguous().view(at::kInt);
    const at::Tensor routing_TK =
        at::cat({padded(lease, routed.ids_TK, -1), padded(lease, scores)}, 1);
    lease.routing.pending = gather(routing_TK, lease.routing.rows);
    lease.x.pending = gather(padded(lease, packed(x_TD)), lease.x.rows);
    keep_sums(lease, routed.ids_TK);
  }

  ExpertRows rows(const Handle& handle) override {
    GatherLease& lease = of(handle);
    const Routed routed = take_routed(lease);
    const CopyRouting in =
        read_routing(arrived(lease, lease.routing), lease.choices, routed.scores_TK.scalar_type());
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    const at::Tensor held = held_ids(lease, in.ids_CK);
    if (exact()) out.scores_SK = in.scores_CK.reshape({-1, 1});
    out.plan =
        plan_of_rank(within_budget(held, routed.budget, out.lost),
                     {.experts = held_, .alignment = routed.alignment, .capacity = lease.capacity});
    out.source_SD = unpacked(lease, source_rows(lease, arrived(lease, lease.x)));
    return out;
  }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    GatherLease& lease = of(handle);
    lease.grad_out.pending = gather(padded(lease, packed(grad_out_TD)), lease.grad_out.rows);
  }

 private:
  // The largest number of tokens; returns the capacities of all ranks together.
  int64_t agree(GatherLease& lease, const Routed& routed) const {
    const int64_t W = ranks_->size(), T = routed.ids_TK.size(0);
    const at::Tensor own = at::full({1, 2}, T, routed.ids_TK.options().dtype(at::kLong));
    own[0][1].fill_(routed.capacity);
    const at::Tensor all = at::empty({W, 2}, own.options());
    ranks_->all_gather({all}, {own}).wait();
    const at::Tensor counts = HostCopy(all).read();
    lease.most = std::max<int64_t>(1, counts.select(1, 0).max().item<int64_t>());
    lease.slots = exact() ? lease.most * lease.choices : lease.most;
    return counts.select(1, 1).sum().item<int64_t>();
  }

  // With rows of `fill` up to the largest T; bytes of 0 are a packed row of zeros.
  static at::Tensor padded(const GatherLease& lease, const at::Tensor& rows, double fill = 0) {
    return at::constant_pad_nd(rows, {0, 0, 0, lease.most - rows.size(0)}, fill).contiguous();
  }

  Pending gather(const at::Tensor& own, at::Tensor& out) const {
    out = at::empty({ranks_->size() * own.size(0), own.size(1)}, own.options());
    return ranks_->all_gather({out}, {own});
  }

  at::Tensor held_ids(const GatherLease& lease, const at::Tensor& ids_SK) {
    const at::Tensor ids_WTK = ids_SK.reshape({ranks_->size(), lease.most, lease.choices});
    const at::Tensor held = table_.held_ids(ids_WTK, ranks_->rank());
    return held.reshape({-1, exact() ? 1 : lease.choices});
  }

  void keep_sums(GatherLease& lease, const at::Tensor& ids_TK) {
    const GatheredSums sums =
        sums_of_gathered(table_.sent(ids_TK), placement_.slices(), lease.most, exact());
    lease.sums = sums.sums;
    lease.slot_sums = sums.slot_sums;
  }

  // kExact: each slot of a token is a source row.
  at::Tensor source_rows(const GatherLease& lease, const at::Tensor& rows_SD) const override {
    if (!exact()) return rows_SD;
    const int64_t S = rows_SD.size(0), K = lease.choices, D = rows_SD.size(1);
    return rows_SD.unsqueeze(1).expand({S, K, D}).reshape({S * K, D});
  }

  Travelling sent_back(const GatherLease& lease, const at::Tensor& y_SX) const override {
    Travelling out{.rows = at::empty(y_SX.sizes(), y_SX.options()), .pending = {}};
    const std::vector<int64_t> even(ranks_->size(), lease.slots);
    out.pending = ranks_->all_to_all(out.rows, y_SX.contiguous(), even, even);
    return out;
  }
};

}  // namespace

std::unique_ptr<Dispatcher> all_gather_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                  const ExpertPlacement& placement,
                                                  DispatchMode mode, WireType wire) {
  return std::make_unique<AllGatherDispatcher>(std::move(ranks), placement, mode, wire);
}

std::unique_ptr<Dispatcher> AllGatherDispatch::build(const NodeGroups& groups,
                                                     const ExpertPlacement& placement,
                                                     const DispatcherOptions& options) const {
  return all_gather_dispatcher(groups.all, placement, options.mode, options.wire);
}

std::string AllGatherDispatch::why(const ExpertRanks& /*ranks*/) const {
  return "as the recipe says";
}

Traffic AllGatherDispatch::traffic(const TrafficShape& s) const {
  const double W = s.ranks, back = s.exact ? W * s.top_k : W;
  return {.messages = {{.what = TrafficRows::kOut, .rows = W, .gathered = true},
                       {.what = TrafficRows::kBack, .rows = back, .leaves = 1 - 1 / W},
                       {.what = TrafficRows::kCounts, .rows = W, .gathered = true}},
          .received = W,
          .unused_rows = W - s.met(),
          .unused_choices = (W - 1) * s.top_k};
}

}  // namespace troupe
