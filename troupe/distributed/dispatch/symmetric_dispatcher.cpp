#include "troupe/distributed/dispatch/symmetric_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "troupe/core/number/round.h"
#include "troupe/distributed/dispatch/copies.h"
#include "troupe/distributed/dispatch/group_dispatcher.h"
#include "troupe/distributed/dispatch/return_sums.h"
#include "troupe/kernels/peer_combine/peer_combine.h"
#include "troupe/kernels/peer_rows/peer_rows.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr int64_t kAlign = 256;  // alignment in bytes of each tensor in a transfer buffer
constexpr int64_t kWidestScore = 8;

struct SymmetricLease : GroupLease {
  Travelling routing, x;  // from send() to rows(), in one transfer
  int64_t capacity = 0;   // of all ranks together
  int64_t most = 0;       // the largest T of a rank; 1 at least
  int64_t slots = 0;      // rows of results that each rank has for each other one
  at::Tensor held;        // int32 [W slots, ..]: local expert of each choice of a source row, or -1
};

int64_t row_bytes(const at::Tensor& rows) {
  return rows.size(1) * static_cast<int64_t>(rows.itemsize());
}

at::Tensor empty_like_rows(const at::Tensor& rows) {
  return at::empty({0, rows.size(1)}, rows.options());
}

class SymmetricDispatcher : public GroupDispatcher<SymmetricLease> {
 public:
  SymmetricDispatcher(std::shared_ptr<ProcessGroup> ranks, const ExpertPlacement& placement,
                      DispatchMode mode, WireType wire)
      : GroupDispatcher("symmetric", std::move(ranks), placement, mode, wire) {}

  void send(const Handle& handle) override {
    SymmetricLease& lease = of(handle);
    begin_to_send(lease);
    const Routed& routed = lease.routed;
    const at::Tensor x_TD = std::exchange(lease.x_TD, {});
    SymmetricHeap& heap = ranks_->heap(x_TD.device());
    agree(heap, lease, x_TD);
    const at::Tensor rows_TX = packed(x_TD);
    const at::Tensor scores = routed.scores_TK.detach().contiguous().view(at::kInt);
    const int64_t more = lease.most - routed.ids_TK.size(0);
    const at::Tensor routing = at::cat({at::constant_pad_nd(routed.ids_TK, {0, 0, 0, more}, -1),
                                        at::constant_pad_nd(scores, {0, 0, 0, more})},
                                       1);
    const int64_t x_at = round_up(lease.most * row_bytes(routing), kAlign);
    const int64_t bytes = x_at + lease.most * row_bytes(rows_TX);
    const int64_t back = ranks_->size() * lease.slots *
                         std::max(row_bytes(x_TD), kWidestScore * (exact() ? 1 : lease.choices));
    heap.reserve(std::max(bytes, back));
    lease.x.transfer = heap.begin(Collective::kAllGather, bytes);
    lease.routing.transfer = lease.x.transfer;
    lay(lease.routing, 0, routing);
    lay(lease.x, x_at, rows_TX);
    lease.x.transfer->publish();
    keep_sums(lease, routed.ids_TK);
  }

  ExpertRows rows(const Handle& handle) override {
    SymmetricLease& lease = of(handle);
    const Routed routed = take_routed(lease);
    const CopyRouting in = read_routing(gathered(lease.routing, lease.most, 1, {}), lease.choices,
                                        routed.scores_TK.scalar_type());
    lease.held = table_
                     .held_ids(in.ids_CK.reshape({ranks_->size(), lease.most, lease.choices}),
                               ranks_->rank())
                     .reshape({-1, exact() ? 1 : lease.choices})
                     .contiguous();
    ExpertRows out{.source_SD = {},
                   .scores_SK = exact() ? in.scores_CK.reshape({-1, 1}) : in.scores_CK,
                   .plan = {}};
    out.plan =
        plan_of_rank(within_budget(lease.held, routed.budget, out.lost),
                     {.experts = held_, .alignment = routed.alignment, .capacity = lease.capacity});
    out.source_SD = unpacked(lease, source_rows(lease, arrived(lease, lease.x)));
    return out;
  }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    SymmetricLease& lease = of(handle);
    const at::Tensor rows = packed(grad_out_TD);
    lease.grad_out.transfer =
        heap(rows).begin(Collective::kAllGather, lease.most * row_bytes(rows));
    lay(lease.grad_out, 0, rows);
    lease.grad_out.transfer->publish();
  }

  bool needs_host_counts() const override { return false; }

 private:
  SymmetricHeap& heap(const at::Tensor& like) const { return ranks_->heap(like.device()); }

  // What hosts know: numbers of tokens and capacities; and that all mean the same layer.
  void agree(SymmetricHeap& heap, SymmetricLease& lease, const at::Tensor& x_TD) const {
    const SymmetricHeap::Numbers own{x_TD.size(0),
                                     lease.routed.capacity,
                                     lease.choices,
                                     x_TD.size(1),
                                     static_cast<int64_t>(x_TD.scalar_type()),
                                     static_cast<int64_t>(lease.routed.scores_TK.scalar_type())};
    lease.most = 1;
    lease.capacity = 0;
    for (const SymmetricHeap::Numbers& of_rank : heap.agree(own)) {
      TROUPE_CHECK(std::equal(own.begin() + 2, own.end(), of_rank.begin() + 2),
                   "ranks send different rows: of", own[3], "and", of_rank[3], "elements with",
                   own[2], "and", of_rank[2], "choices");
      lease.most = std::max(lease.most, of_rank[0]);
      lease.capacity += of_rank[1];
    }
    lease.slots = exact() ? lease.most * lease.choices : lease.most;
  }

  void keep_sums(SymmetricLease& lease, const at::Tensor& ids_TK) {
    const GatheredSums sums =
        sums_of_gathered(table_.sent(ids_TK), placement_.slices(), lease.most, exact());
    lease.sums = sums.sums;
    lease.slot_sums = sums.slot_sums;
  }

  // Rows into this rank's part of the transfer.
  static void lay(Travelling& what, int64_t at, const at::Tensor& rows) {
    what.at = at;
    what.rows = empty_like_rows(rows);
    at::from_blob(what.transfer->own() + at, rows.sizes(), rows.options()).copy_(rows);
  }

  // The first `each` rows of every rank, `repeats` times, where they are wanted; else zeros.
  at::Tensor gathered(Travelling& what, int64_t each, int64_t repeats,
                      const at::Tensor& wanted) const {
    const Travelling moved = std::exchange(what, {});
    moved.transfer->await();
    const int64_t W = ranks_->size();
    at::Tensor out = at::empty({W * each * repeats, moved.rows.size(1)}, moved.rows.options());
    PeerRows args{.peers = W,
                  .each = each,
                  .repeats = repeats,
                  .row_bytes = row_bytes(moved.rows),
                  .choices = wanted.defined() ? wanted.size(1) : 0,
                  .wanted = wanted.defined() ? ptr<const int32_t>(wanted, "wanted") : nullptr,
                  .fill = 0,
                  .out = static_cast<uint8_t*>(out.data_ptr())};
    for (int64_t w = 0; w < W; ++w) {
      args.from[static_cast<size_t>(w)] = moved.transfer->of(w) + moved.at;
    }
    run(out.device(), args, peer_rows_cpu, &CudaKernels::peer_rows);
    return out;
  }

  at::Tensor arrived(const SymmetricLease& lease, Travelling& what) const override {
    return gathered(what, lease.most, exact() ? lease.choices : 1, lease.held);
  }
  at::Tensor source_rows(const SymmetricLease&, const at::Tensor& rows) const override {
    return rows;
  }

  // Results stay where the token's owner reads them: at the row of its copy.
  Travelling sent_back(const SymmetricLease& lease, const at::Tensor& y_SX) const override {
    const at::Tensor y = y_SX.contiguous();
    TROUPE_CHECK(y.size(0) == lease.held.size(0), "-", y.size(0), "rows come back, of",
                 lease.held.size(0));
    Travelling out{.rows = empty_like_rows(y)};
    out.transfer = heap(y).begin(Collective::kAllToAll, y.size(0) * row_bytes(y));
    run(y.device(),
        PeerRows{.peers = 1,
                 .from = {static_cast<const uint8_t*>(y.const_data_ptr())},
                 .each = y.size(0),
                 .row_bytes = row_bytes(y),
                 .choices = lease.held.size(1),
                 .wanted = ptr<const int32_t>(lease.held, "held"),
                 .out = out.transfer->own()},
        peer_rows_cpu, &CudaKernels::peer_rows);
    out.transfer->publish();
    return out;
  }

  at::Tensor summed(const SymmetricLease& lease, Travelling& what,
                    const Plan& sums) const override {
    const Travelling moved = std::exchange(what, {});
    moved.transfer->await();
    at::Tensor out = at::empty({sums.slot_row.size(0), moved.rows.size(1)}, moved.rows.options());
    PeerCombine args{.peers = ranks_->size(),
                     .each = lease.slots,
                     .choices = sums.slot_row.size(1),
                     .place = ptr<const int32_t>(sums.slot_row, "places"),
                     .out = mut_view(out, "combine: out")};
    for (int64_t w = 0; w < ranks_->size(); ++w) {
      args.from[static_cast<size_t>(w)] =
          moved.transfer->of(w) + ranks_->rank() * lease.slots * row_bytes(moved.rows);
    }
    run(out.device(), args, peer_combine_cpu, &CudaKernels::peer_combine);
    return out;
  }
};

}  // namespace

std::unique_ptr<Dispatcher> symmetric_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                 const ExpertPlacement& placement,
                                                 DispatchMode mode, WireType wire) {
  return std::make_unique<SymmetricDispatcher>(std::move(ranks), placement, mode, wire);
}

std::unique_ptr<Dispatcher> SymmetricDispatch::build(const NodeGroups& groups,
                                                     const ExpertPlacement& placement,
                                                     const DispatcherOptions& options) const {
  return symmetric_dispatcher(groups.all, placement, options.mode, options.wire);
}

std::string SymmetricDispatch::why(const ExpertRanks& /*ranks*/) const {
  return "as the recipe says";
}

Traffic SymmetricDispatch::traffic(const TrafficShape& s) const {
  const double W = s.ranks, leaves = 1 - 1 / W;
  return {.messages = {{.what = TrafficRows::kOut, .rows = s.met(), .leaves = leaves},
                       {.what = TrafficRows::kBack, .rows = s.back(), .leaves = leaves},
                       {.what = TrafficRows::kCounts, .rows = W, .gathered = true}},
          .received = s.met(),
          .unused_rows = W - s.met(),
          .unused_choices = (W - 1) * s.top_k,
          .kept_rows = SymmetricHeap::kSlots * W * (s.exact ? s.top_k : 1)};
}

}  // namespace troupe
