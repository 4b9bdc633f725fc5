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
#include "troupe/distributed/group/host_copy.h"

namespace troupe {
namespace {

class AllGatherExchange : public GroupExchange {
 public:
  AllGatherExchange(std::shared_ptr<ExpertGroup> experts, const at::Tensor& x_TD,
                    const Routed& routed)
      : GroupExchange(std::move(experts), x_TD, routed) {
    agree(routed);
    const at::Tensor scores = routed.scores_TK.detach().contiguous().view(at::kInt);
    const at::Tensor routing_TK = at::cat({padded(routed.ids_TK, -1), padded(scores)}, 1);
    routing_.pending = gather(routing_TK, routing_.rows);
    x_.pending = gather(padded(packed(x_TD)), x_.rows);
    keep_gathered_sums(routed.ids_TK, most_);
  }

  ExpertRows receive_rows() override {
    const CopyRouting in = read_routing(arrived(routing_), choices_, score_type_);
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    const at::Tensor held = held_ids(in.ids_CK);
    if (exact()) out.scores_SK = in.scores_CK.reshape({-1, 1});
    out.plan = rows_plan(held, capacity_, out.lost);
    out.source_SD = unpacked(source_rows(arrived(x_)));
    return out;
  }

  void send_grads(const at::Tensor& grad_out_TD) override {
    grad_out_.pending = gather(padded(packed(grad_out_TD)), grad_out_.rows);
  }

 private:
  // The largest number of tokens, and the capacities of all ranks together.
  void agree(const Routed& routed) {
    const int64_t W = ranks().size(), T = routed.ids_TK.size(0);
    const at::Tensor own = at::full({1, 2}, T, routed.ids_TK.options().dtype(at::kLong));
    own[0][1].fill_(routed.capacity);
    const at::Tensor all = at::empty({W, 2}, own.options());
    ranks().all_gather({all}, {own}).wait();
    const at::Tensor counts = HostCopy(all).read();
    most_ = std::max<int64_t>(1, counts.select(1, 0).max().item<int64_t>());
    slots_ = exact() ? most_ * choices_ : most_;
    capacity_ = counts.select(1, 1).sum().item<int64_t>();
  }

  // With rows of `fill` up to the largest T; bytes of 0 are a packed row of zeros.
  at::Tensor padded(const at::Tensor& rows, double fill = 0) const {
    return at::constant_pad_nd(rows, {0, 0, 0, most_ - rows.size(0)}, fill).contiguous();
  }

  Pending gather(const at::Tensor& own, at::Tensor& out) const {
    out = at::empty({ranks().size() * own.size(0), own.size(1)}, own.options());
    return ranks().all_gather({out}, {own});
  }

  at::Tensor held_ids(const at::Tensor& ids_SK) const {
    const at::Tensor ids_WTK = ids_SK.reshape({ranks().size(), most_, choices_});
    const at::Tensor held = experts_->table.held_ids(ids_WTK, ranks().rank());
    return held.reshape({-1, exact() ? 1 : choices_});
  }

  // kExact: each slot of a token is a source row.
  at::Tensor source_rows(const at::Tensor& rows_SD) const override {
    if (!exact()) return rows_SD;
    const int64_t S = rows_SD.size(0), D = rows_SD.size(1);
    return rows_SD.unsqueeze(1).expand({S, choices_, D}).reshape({S * choices_, D});
  }

  Traveling sent_back(const at::Tensor& y_SX) const override {
    Traveling out{.rows = at::empty(y_SX.sizes(), y_SX.options()), .pending = {}};
    const std::vector<int64_t> even(ranks().size(), slots_);
    out.pending = ranks().all_to_all(out.rows, y_SX.contiguous(), even, even);
    return out;
  }

  Traveling routing_, x_;  // until receive_rows()
  int64_t capacity_ = 0;   // of all ranks together
  int64_t most_ = 0;       // the largest T of a rank; 1 at least
  int64_t slots_ = 0;      // rows that each rank sends back: `most_`, times K for kExact
};

}  // namespace

std::unique_ptr<Dispatcher> all_gather_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                  const ExpertPlacement& placement,
                                                  DispatchMode mode, WireType wire) {
  return group_dispatcher({.name = "all-gather", .begin = begin_exchange<AllGatherExchange>},
                          {.all = std::move(ranks)}, placement, {.mode = mode, .wire = wire});
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
