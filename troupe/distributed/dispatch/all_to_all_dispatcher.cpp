#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "troupe/distributed/dispatch/copies.h"
#include "troupe/distributed/dispatch/group_dispatcher.h"
#include "troupe/distributed/group/host_copy.h"
#include "troupe/distributed/group/split.h"

namespace troupe {
namespace {

struct AllToAllLease : GroupLease {
  // From route() to rows().
  HostCopy counts;                  // int32 [2, W, kCountColumns]: sent, received
  at::Tensor send_routing, send_x;  // sized for the most copies there may be
  Travelling routing, x;            // from send() to rows()
  int64_t capacity = 0;             // of all ranks together

  Copies copies;
  RankSplit copy_split, row_split;
  at::Tensor copy_R;  // kExact: the received copy of each source row
};

// Plain reads: the GPU has nothing to do until what follows them is issued.
RankSplit read_split(const at::Tensor& counts, CountColumn column) {
  const int64_t W = counts.size(1);
  const auto* const all = counts.const_data_ptr<int32_t>();
  const auto read = [&](int64_t direction) {
    std::vector<int64_t> out(static_cast<size_t>(W));
    for (int64_t w = 0; w < W; ++w) {
      out[static_cast<size_t>(w)] = all[(direction * W + w) * kCountColumns + column];
    }
    return out;
  };
  return {read(0), read(1)};
}

class AllToAllDispatcher : public GroupDispatcher<AllToAllLease> {
 public:
  AllToAllDispatcher(std::shared_ptr<ProcessGroup> ranks, const ExpertPlacement& placement,
                     DispatchMode mode, WireType wire)
      : GroupDispatcher("all-to-all", std::move(ranks), placement, mode, wire) {}

  void send(const Handle& handle) override {
    AllToAllLease& lease = of(handle);
    begin_to_send(lease);
    const at::Tensor counts = lease.counts.read();
    lease.copy_split = read_split(counts, kCopies);
    lease.row_split = read_split(counts, kRows);
    lease.capacity = read_split(counts, kCapacity).received();
    const int64_t sent = lease.copy_split.sent();
    const auto begin = [&](at::Tensor& most, Travelling& what) {
      what.pending = send_rows(*ranks_, lease.copy_split,
                               std::exchange(most, {}).narrow(0, 0, sent), what.rows);
    };
    begin(lease.send_routing, lease.routing);
    begin(lease.send_x, lease.x);
    lease.copies.trim(sent);
    keep_sums(lease);
  }

  ExpertRows rows(const Handle& handle) override {
    AllToAllLease& lease = of(handle);
    const Routed routed = take_routed(lease);
    CopyRouting in =
        read_routing(arrived(lease, lease.routing), lease.choices, routed.scores_TK.scalar_type());
    if (exact()) in = one_row_each(in, lease.row_split.received(), lease.copy_R);
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    const at::Tensor ids = within_budget(in.ids_CK, routed.budget, out.lost);
    out.plan = plan_of_rank(
        ids, {.experts = held_, .alignment = routed.alignment, .capacity = lease.capacity},
        lease.row_split.received());
    out.source_SD = unpacked(lease, source_rows(lease, arrived(lease, lease.x)));
    return out;
  }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    AllToAllLease& lease = of(handle);
    const at::Tensor rows = packed(grad_out_TD, lease.copies.tokens());
    lease.grad_out.pending = send_rows(*ranks_, lease.copy_split, rows, lease.grad_out.rows);
  }

 private:
  void announce(AllToAllLease& lease) override {
    const Routed& routed = lease.routed;
    lease.copies = Copies(table_, routed.ids_TK, {.count = ranks_->size()}, routed.capacity);
    const at::Tensor& counts = lease.copies.counts();
    lease.counts = HostCopy(at::stack({counts, exchange_counts(*ranks_, counts)}));
    // All that needs no number follows before the host waits for them.
    lease.send_routing = lease.copies.pack_routing(routed.scores_TK, RoutingFormat::kLocalIds);
    lease.send_x = packed(std::exchange(lease.x_TD, {}), lease.copies.tokens());
  }

  at::Tensor source_rows(const AllToAllLease& lease, const at::Tensor& copies_CD) const override {
    return exact() ? copies_CD.index_select(0, lease.copy_R) : copies_CD;
  }

  Travelling sent_back(const AllToAllLease& lease, const at::Tensor& y_SX) const override {
    Travelling out;
    out.pending =
        return_rows(*ranks_, exact() ? lease.row_split : lease.copy_split, y_SX, out.rows);
    return out;
  }

  void keep_sums(AllToAllLease& lease) const {
    if (exact()) {
      lease.sums = lease.copies.sum_of_rows(lease.row_split.sent());
      lease.slot_sums = lease.copies.sum_of_slots(lease.row_split.sent());
    } else {
      lease.sums = lease.copies.sum_of_copies();
    }
  }
};

}  // namespace

std::unique_ptr<Dispatcher> all_to_all_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                  const ExpertPlacement& placement,
                                                  DispatchMode mode, WireType wire) {
  return std::make_unique<AllToAllDispatcher>(std::move(ranks), placement, mode, wire);
}

std::unique_ptr<Dispatcher> AllToAllDispatch::build(const NodeGroups& groups,
                                                    const ExpertPlacement& placement,
                                                    const DispatcherOptions& options) const {
  return all_to_all_dispatcher(groups.all, placement, options.mode, options.wire);
}

std::string AllToAllDispatch::why(const ExpertRanks& ranks) const {
  if (ranks.fill_nodes()) return "as the recipe says";
  const std::string sharing = "the " + std::to_string(ranks.ranks) + " ranks that share experts ";
  if (ranks.node % ranks.ranks == 0) return sharing + "are on one host";
  return sharing + "do not fill nodes of " + std::to_string(ranks.node);
}

Traffic AllToAllDispatch::traffic(const TrafficShape& s) const {
  const double leaves = 1 - 1 / s.ranks;
  return {.messages = {{.what = TrafficRows::kOut, .rows = s.met(), .leaves = leaves},
                       {.what = TrafficRows::kBack, .rows = s.back(), .leaves = leaves},
                       {.what = TrafficRows::kCounts}},
          .received = s.met()};
}

}  // namespace troupe
