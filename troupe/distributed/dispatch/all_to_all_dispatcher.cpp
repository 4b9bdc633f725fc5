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

class AllToAllExchange : public GroupExchange {
 public:
  AllToAllExchange(std::shared_ptr<ExpertGroup> experts, const at::Tensor& x_TD,
                   const Routed& routed)
      : GroupExchange(std::move(experts), x_TD, routed),
        copies_(experts_->table, routed.ids_TK, {.count = ranks().size()}, routed.capacity) {
    const at::Tensor& counts = copies_.counts();
    HostCopy all_counts(at::stack({counts, exchange_counts(ranks(), counts)}));
    // All that needs no number follows before the host waits for them.
    const at::Tensor send_routing =
        copies_.pack_routing(routed.scores_TK, RoutingFormat::kLocalIds);
    const at::Tensor send_x = packed(x_TD, copies_.tokens());
    read_counts(all_counts.read());
    send_first(ranks(), copy_split_, send_routing, routing_);
    send_first(ranks(), copy_split_, send_x, x_);
    copies_.trim(copy_split_.sent());
    keep_sums();
  }

  ExpertRows receive_rows() override {
    CopyRouting in = read_routing(arrived(routing_), choices_, score_type_);
    if (exact()) in = one_row_each(in, row_split_.received(), copy_R_);
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    out.plan = rows_plan(in.ids_CK, capacity_, out.lost, row_split_.received());
    if (exact() && experts_->options.by_source) out.parts = parts_of(in.ids_CK);
    out.source_SD = unpacked(source_rows(arrived(x_)));
    return out;
  }

  void send_grads(const at::Tensor& grad_out_TD) override {
    const at::Tensor rows = packed(grad_out_TD, copies_.tokens());
    grad_out_.pending = send_rows(ranks(), copy_split_, rows, grad_out_.rows);
  }

 private:
  std::vector<ExpertRows::Part> parts_of(const at::Tensor& ids_S1) const {
    std::vector<ExpertRows::Part> out;
    int64_t from = 0;
    at::Tensor lost;  // none: a budget is of all rows
    for (const int64_t rows : row_split_.from) {
      out.push_back({rows, rows_plan(ids_S1.narrow(0, from, rows).contiguous(), 0, lost, rows)});
      from += rows;
    }
    return out;
  }

  void read_counts(const at::Tensor& counts) {
    copy_split_ = read_split(counts, kCopies);
    row_split_ = read_split(counts, kRows);
    capacity_ = read_split(counts, kCapacity).received();
  }

  at::Tensor source_rows(const at::Tensor& copies_CD) const override {
    return exact() ? copies_CD.index_select(0, copy_R_) : copies_CD;
  }

  Traveling sent_back(const at::Tensor& y_SX) const override {
    Traveling out;
    out.pending = return_rows(ranks(), exact() ? row_split_ : copy_split_, y_SX, out.rows);
    return out;
  }

  void keep_sums() {
    if (exact()) {
      sums_ = copies_.sum_of_rows(row_split_.sent());
      slot_sums_ = copies_.sum_of_slots(row_split_.sent());
    } else {
      sums_ = copies_.sum_of_copies();
    }
  }

  Copies copies_;
  RankSplit copy_split_, row_split_;
  int64_t capacity_ = 0;   // of all ranks together
  Traveling routing_, x_;  // until receive_rows()
  at::Tensor copy_R_;      // kExact: the received copy of each source row
};

}  // namespace

std::unique_ptr<Dispatcher> all_to_all_dispatcher(std::shared_ptr<ProcessGroup> ranks,
                                                  const ExpertPlacement& placement,
                                                  DispatchMode mode, WireType wire) {
  return AllToAllDispatch().build({.all = std::move(ranks)}, placement,
                                  {.mode = mode, .wire = wire});
}

std::unique_ptr<Dispatcher> AllToAllDispatch::build(const NodeGroups& groups,
                                                    const ExpertPlacement& placement,
                                                    const DispatcherOptions& options) const {
  return group_dispatcher({.name = "all-to-all", .begin = begin_exchange<AllToAllExchange>},
                          {.all = groups.all}, placement, options);
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
