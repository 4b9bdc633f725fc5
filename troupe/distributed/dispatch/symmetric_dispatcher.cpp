#include "troupe/distributed/dispatch/symmetric_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <string>
#include <utility>

#include "troupe/core/file/hash.h"
#include "troupe/core/number/round.h"
#include "troupe/distributed/dispatch/copies.h"
#include "troupe/distributed/dispatch/group_dispatcher.h"
#include "troupe/kernels/peer_combine/peer_combine.h"
#include "troupe/kernels/peer_rows/peer_rows.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr int64_t kAlign = 256;  // alignment in bytes of each tensor in a transfer buffer
constexpr int64_t kWidestScore = 8;

int64_t row_bytes(const at::Tensor& rows) {
  return rows.size(1) * static_cast<int64_t>(rows.itemsize());
}

at::Tensor empty_like_rows(const at::Tensor& rows) {
  return at::empty({0, rows.size(1)}, rows.options());
}

class SymmetricExchange : public GroupExchange {
 public:
  SymmetricExchange(std::shared_ptr<ExpertGroup> experts, const at::Tensor& x_TD,
                    const Routed& routed)
      : GroupExchange(std::move(experts), x_TD, routed) {
    SymmetricHeap& heap = heap_of(x_TD);
    agree(heap, x_TD, routed);
    const at::Tensor rows_TX = packed(x_TD);
    const at::Tensor scores = routed.scores_TK.detach().contiguous().view(at::kInt);
    const int64_t more = most_ - routed.ids_TK.size(0);
    const at::Tensor routing = at::cat({at::constant_pad_nd(routed.ids_TK, {0, 0, 0, more}, -1),
                                        at::constant_pad_nd(scores, {0, 0, 0, more})},
                                       1);
    const int64_t x_at = round_up(most_ * row_bytes(routing), kAlign);
    const int64_t bytes = x_at + most_ * row_bytes(rows_TX);
    const int64_t back = ranks().size() * slots_ *
                         std::max(row_bytes(x_TD), kWidestScore * (exact() ? 1 : choices_));
    heap.reserve(std::max(bytes, back));
    x_.transfer = heap.begin(Collective::kAllGather, bytes, contents_);
    routing_.transfer = x_.transfer;
    lay(routing_, 0, routing);
    lay(x_, x_at, rows_TX);
    x_.transfer->publish();
    keep_gathered_sums(routed.ids_TK, most_);
  }

  ExpertRows receive_rows() override {
    const CopyRouting in = read_routing(gathered(routing_, 1, {}), choices_, score_type_);
    held_ = experts_->table
                .held_ids(in.ids_CK.reshape({ranks().size(), most_, choices_}), ranks().rank())
                .reshape({-1, exact() ? 1 : choices_})
                .contiguous();
    ExpertRows out{.source_SD = {},
                   .scores_SK = exact() ? in.scores_CK.reshape({-1, 1}) : in.scores_CK,
                   .plan = {}};
    out.plan = rows_plan(held_, capacity_, out.lost);
    out.source_SD = unpacked(source_rows(arrived(x_)));
    return out;
  }

  void send_grads(const at::Tensor& grad_out_TD) override {
    const at::Tensor rows = packed(grad_out_TD);
    grad_out_.transfer =
        heap_of(rows).begin(Collective::kAllGather, most_ * row_bytes(rows), contents_);
    lay(grad_out_, 0, rows);
    grad_out_.transfer->publish();
  }

 private:
  SymmetricHeap& heap_of(const at::Tensor& like) const { return ranks().heap(like.device()); }

  // What hosts know: numbers of tokens and capacities; and that all mean the same layer.
  void agree(SymmetricHeap& heap, const at::Tensor& x_TD, const Routed& routed) {
    const SymmetricHeap::Numbers own{x_TD.size(0),
                                     routed.capacity,
                                     choices_,
                                     x_TD.size(1),
                                     static_cast<int64_t>(x_TD.scalar_type()),
                                     static_cast<int64_t>(score_type_)};
    if (routed.most > 0) {
      TROUPE_CHECK(x_TD.size(0) <= routed.most && routed.capacity == 0, "-", x_TD.size(0),
                   "tokens with a capacity of", routed.capacity,
                   "are sent where each rank sends up to", routed.most, "without one");
      most_ = routed.most;
    } else {
      ask(heap, own);
    }
    slots_ = exact() ? most_ * choices_ : most_;
    std::string said = std::to_string(most_) + ' ' + std::to_string(exact() ? 1 : 0);
    for (size_t i = 2; i < own.size(); ++i) said += ' ' + std::to_string(own[i]);
    contents_ = hash64(said);
  }

  void ask(SymmetricHeap& heap, const SymmetricHeap::Numbers& own) {
    for (const SymmetricHeap::Numbers& of_rank : heap.agree(own)) {
      TROUPE_CHECK(std::equal(own.begin() + 2, own.end(), of_rank.begin() + 2),
                   "ranks send different rows: of", own[3], "and", of_rank[3], "elements with",
                   own[2], "and", of_rank[2], "choices");
      most_ = std::max(most_, of_rank[0]);
      capacity_ += of_rank[1];
    }
  }

  // Rows into this rank's part of the transfer.
  static void lay(Traveling& what, int64_t at, const at::Tensor& rows) {
    what.at = at;
    what.rows = empty_like_rows(rows);
    at::from_blob(what.transfer->own() + at, rows.sizes(), rows.options()).copy_(rows);
  }

  // The first `most_` rows of every rank, `repeats` times, where they are wanted; else zeros.
  at::Tensor gathered(Traveling& what, int64_t repeats, const at::Tensor& wanted) const {
    const Traveling moved = std::exchange(what, {});
    moved.transfer->await();
    const int64_t W = ranks().size();
    at::Tensor out = at::empty({W * most_ * repeats, moved.rows.size(1)}, moved.rows.options());
    PeerRows args{.peers = W,
                  .each = most_,
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

  at::Tensor arrived(Traveling& what) const override {
    return gathered(what, exact() ? choices_ : 1, held_);
  }
  at::Tensor source_rows(const at::Tensor& rows) const override { return rows; }

  // Results stay where the token's owner reads them: at the row of its copy.
  Traveling sent_back(const at::Tensor& y_SX) const override {
    const at::Tensor y = y_SX.contiguous();
    TROUPE_CHECK(y.size(0) == held_.size(0), "-", y.size(0), "rows come back, of", held_.size(0));
    Traveling out{.rows = empty_like_rows(y)};
    out.transfer = heap_of(y).begin(Collective::kAllToAll, y.size(0) * row_bytes(y), contents_);
    run(y.device(),
        PeerRows{.peers = 1,
                 .from = {static_cast<const uint8_t*>(y.const_data_ptr())},
                 .each = y.size(0),
                 .row_bytes = row_bytes(y),
                 .choices = held_.size(1),
                 .wanted = ptr<const int32_t>(held_, "held"),
                 .out = out.transfer->own()},
        peer_rows_cpu, &CudaKernels::peer_rows);
    out.transfer->publish();
    return out;
  }

  at::Tensor summed(Traveling& what, const Plan& sums) const override {
    const Traveling moved = std::exchange(what, {});
    moved.transfer->await();
    at::Tensor out = at::empty({sums.slot_row.size(0), moved.rows.size(1)}, moved.rows.options());
    PeerCombine args{.peers = ranks().size(),
                     .each = slots_,
                     .choices = sums.slot_row.size(1),
                     .place = ptr<const int32_t>(sums.slot_row, "places"),
                     .out = mut_view(out, "combine: out")};
    for (int64_t w = 0; w < ranks().size(); ++w) {
      args.from[static_cast<size_t>(w)] =
          moved.transfer->of(w) + ranks().rank() * slots_ * row_bytes(moved.rows);
    }
    run(out.device(), args, peer_combine_cpu, &CudaKernels::peer_combine);
    return out;
  }

  Traveling routing_, x_;  // until receive_rows(), in one transfer
  int64_t capacity_ = 0;   // of all ranks together
  int64_t most_ = 1;       // the largest T of a rank; 1 at least
  int64_t slots_ = 0;      // rows of results that each rank has for each other one
  uint64_t contents_ = 0;  // of these, widths and types: equal where all mean the same layer
  at::Tensor held_;  // int32 [W slots, ..]: local expert of each choice of a source row, or -1
};

}  // namespace

std::unique_ptr<Dispatcher> symmetric_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                 const ExpertPlacement& placement,
                                                 DispatchMode mode, WireType wire) {
  return group_dispatcher(
      {.name = "symmetric", .host_reads = false, .begin = begin_exchange<SymmetricExchange>},
      {.all = std::move(ranks)}, placement, {.mode = mode, .wire = wire});
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
