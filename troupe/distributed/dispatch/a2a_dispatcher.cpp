#include "troupe/distributed/dispatch/a2a_dispatcher.h"

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

struct A2aLease : GroupLease {
  // From route() to rows().
  HostCopy counts;         // int32 [2, W, kCountColumns]: sent, received
  at::Tensor told, moved;  // what goes out: routing and rows of as many copies as there may be

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

class A2aDispatcher : public GroupDispatcher<A2aLease> {
 public:
  A2aDispatcher(std::shared_ptr<RankGroup> ranks, const Placement& placement, DispatchMode mode,
                WireType wire)
      : GroupDispatcher("all-to-all", std::move(ranks), placement, mode, wire) {}

  ExpertRows rows(const Handle& handle) override {
    A2aLease& lease = of(handle);
    const Routed routed = take_routed(lease);
    const at::Tensor counts = lease.counts.read();
    lease.copy_split = read_split(counts, kCopies);
    lease.row_split = read_split(counts, kRows);
    const int64_t capacity = read_split(counts, kCapacity).received();
    const int64_t sent = lease.copy_split.sent();
    at::Tensor heard, source_CD;
    Pending hearing = send_rows(*ranks_, lease.copy_split,
                                std::exchange(lease.told, {}).narrow(0, 0, sent), heard);
    Pending moving = send_rows(*ranks_, lease.copy_split,
                               std::exchange(lease.moved, {}).narrow(0, 0, sent), source_CD);
    lease.copies.trim(sent);
    keep_sums(lease);
    hearing.wait();
    CopyRouting in = read_routing(heard, lease.choices, routed.scores_TK.scalar_type());
    if (exact()) in = one_row_each(in, lease.row_split.received(), lease.copy_R);
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    const at::Tensor ids = within_budget(in.ids_CK, routed.budget, out.lost);
    out.plan =
        plan_of_rank(ids, {.experts = held_, .alignment = routed.alignment, .capacity = capacity},
                     lease.row_split.received());
    moving.wait();
    out.source_SD = unpacked(lease, source_rows(lease, source_CD));
    return out;
  }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    A2aLease& lease = of(handle);
    const at::Tensor rows = packed(grad_out_TD, lease.copies.tokens());
    lease.pending = send_rows(*ranks_, lease.copy_split, rows, lease.grad_rows);
  }

 private:
  void announce(A2aLease& lease) override {
    const Routed& routed = lease.routed;
    lease.copies = Copies(table_, routed.ids_TK, {.count = ranks_->size()}, routed.capacity);
    const at::Tensor& counts = lease.copies.counts();
    lease.counts = HostCopy(at::stack({counts, told_each(*ranks_, counts)}));
    // All that needs no number follows before the host waits for them.
    lease.told = lease.copies.tell(routed.scores_TK, ToldAs::kLocalIds);
    lease.moved = packed(std::exchange(lease.x_TD, {}), lease.copies.tokens());
  }

  at::Tensor source_rows(const A2aLease& lease, const at::Tensor& copies_CD) const override {
    return exact() ? copies_CD.index_select(0, lease.copy_R) : copies_CD;
  }

  at::Tensor sent_back(const A2aLease& lease, const at::Tensor& y_SX) const override {
    const RankSplit& split = exact() ? lease.row_split : lease.copy_split;
    return returned_rows(*ranks_, split, y_SX);
  }

  void keep_sums(A2aLease& lease) const {
    if (exact()) {
      lease.sums = lease.copies.sum_of_rows(lease.row_split.sent());
      lease.slot_sums = lease.copies.sum_of_slots(lease.row_split.sent());
    } else {
      lease.sums = lease.copies.sum_of_copies();
    }
  }
};

}  // namespace

std::unique_ptr<Dispatcher> a2a_dispatcher(std::shared_ptr<RankGroup> ranks,
                                           const Placement& placement, DispatchMode mode,
                                           WireType wire) {
  return std::make_unique<A2aDispatcher>(std::move(ranks), placement, mode, wire);
}

}  // namespace troupe
