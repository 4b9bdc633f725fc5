#include "troupe/distributed/dispatch/two_level_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/stack.h>

#include <numeric>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/copies.h"
#include "troupe/distributed/dispatch/group_dispatcher.h"
#include "troupe/distributed/group/host_copy.h"
#include "troupe/distributed/group/split.h"
#include "troupe/ops/combine.h"

namespace troupe {
namespace {

// The numbers that ranks tell each other, int32. Across, a line for each node: what it gets, this
// rank's capacity, and what each of its ranks gets of that. Within, a line for each rank of the
// node, and in it for each node: what comes of the tokens of the rank there.
enum AcrossColumn : int64_t { kNodeCopies, kNodeCapacity, kPerRank };
enum WithinColumn : int64_t { kWithinCopies, kWithinRows, kWithinCapacity, kWithinColumns };

using Sizes = std::vector<int64_t>;

// Rows in A B blocks, block (a, b) at place a B + b, with their places exchanged: at b A + a.
struct Blocks {
  Sizes sizes;  // [A][B]
  int64_t A = 1;

  Blocks exchanged() const {
    const int64_t B = static_cast<int64_t>(sizes.size()) / A;
    Blocks out{.sizes = {}, .A = B};
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t a = 0; a < A; ++a) out.sizes.push_back(sizes[static_cast<size_t>(a * B + b)]);
    }
    return out;
  }
  at::Tensor exchange(const at::Tensor& rows) const {
    const int64_t B = static_cast<int64_t>(sizes.size()) / A;
    if (A == 1 || B == 1) return rows;
    const std::vector<at::Tensor> blocks = rows.split_with_sizes(sizes);
    std::vector<at::Tensor> out;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t a = 0; a < A; ++a) out.push_back(blocks[static_cast<size_t>(a * B + b)]);
    }
    return at::cat(out);
  }
};

// How rows of one kind (a token's copies, or its routed rows) go over both groups.
struct Ways {
  RankSplit across, within;
  Blocks arrived;  // [place that sent them here][node that they are of]
};

class TwoLevelExchange : public GroupExchange {
 public:
  TwoLevelExchange(std::shared_ptr<ExpertGroup> experts, const at::Tensor& x_TD,
                   const Routed& routed)
      : GroupExchange(std::move(experts), x_TD, routed),
        to_nodes_(experts_->table, routed.ids_TK,
                  {.per = within().size(), .count = across().size()}, routed.capacity) {
    HostCopy counts = exchanged_counts(routed);
    const at::Tensor send_routing =
        to_nodes_.pack_routing(routed.scores_TK, RoutingFormat::kIdsAndToken);
    const at::Tensor send_x = packed(x_TD, to_nodes_.tokens());
    read_counts(counts.read());
    send_first(across(), copies_.across, send_routing, routing_);
    send_first(across(), copies_.across, send_x, x_);
    to_nodes_.trim(copies_.across.sent());
  }

  ExpertRows receive_rows() override {
    CopyRouting in = pass_on(arrived(routing_));
    keep_sums();
    if (exact()) in = one_row_each(in, rows_.within.received(), copy_R_);
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    out.plan = rows_plan(in.ids_CK, capacity_, out.lost, rows_.within.received());
    out.source_SD = unpacked(source_rows(arrived(x_)));
    return out;
  }

  void send_grads(const at::Tensor& grad_out_TD) override {
    grad_out_.pending = send_rows(across(), copies_.across, packed(grad_out_TD, to_nodes_.tokens()),
                                  grad_out_.rows);
  }

 private:
  ProcessGroup& across() const { return *experts_->groups.across; }
  ProcessGroup& within() const { return *experts_->groups.within; }

  // The numbers that this rank sent and received across, and received within: one line.
  HostCopy exchanged_counts(const Routed& routed) const {
    const int64_t N = across().size(), R = within().size();
    const at::Tensor& counts_N = to_nodes_.counts();
    const Copies to_all(experts_->table, routed.ids_TK, {.count = N * R});
    const at::Tensor counts_NR = to_all.counts().reshape({N, R, kCountColumns});
    const at::Tensor sent_counts =
        at::cat({counts_N.narrow(1, kCopies, 1), counts_N.narrow(1, kCapacity, 1),
                 counts_NR.select(2, kCopies), counts_NR.select(2, kRows)},
                1);
    const at::Tensor received_counts = exchange_counts(across(), sent_counts);
    const auto of_rank = [&](int64_t from) {
      return received_counts.narrow(1, from, R).t();
    };  // [R, N]
    const at::Tensor capacity =
        received_counts.select(1, kNodeCapacity).unsqueeze(0).expand({R, N});
    const at::Tensor passed = at::stack({of_rank(kPerRank), of_rank(kPerRank + R), capacity}, 2);
    const at::Tensor within_counts =
        exchange_counts(within(), passed.reshape({R, N * kWithinColumns}));
    return HostCopy(at::cat(
        {sent_counts.reshape({-1}), received_counts.reshape({-1}), within_counts.reshape({-1})}));
  }

  void read_counts(const at::Tensor& all) {
    const int64_t N = across().size(), R = within().size(), columns = kPerRank + 2 * R;
    const auto* const sent_counts = all.const_data_ptr<int32_t>();
    const auto* const received_counts = sent_counts + N * columns;
    const auto* const within_counts = received_counts + N * columns;
    const auto sum_of = [&](const int32_t* line, int64_t from) {
      return std::accumulate(line + from, line + from + R, int64_t{0});
    };
    for (int64_t n = 0; n < N; ++n) {
      const auto *const to = sent_counts + n * columns, *const from = received_counts + n * columns;
      copies_.across.to.push_back(to[kNodeCopies]);
      copies_.across.from.push_back(from[kNodeCopies]);
      rows_.across.to.push_back(sum_of(to, kPerRank + R));
      rows_.across.from.push_back(sum_of(from, kPerRank + R));
    }
    for (int64_t r = 0; r < R; ++r) {
      int64_t copies = 0, rows = 0;
      for (int64_t n = 0; n < N; ++n) {
        copies += received_counts[n * columns + kPerRank + r];
        rows += received_counts[n * columns + kPerRank + R + r];
        const auto* const block = within_counts + (r * N + n) * kWithinColumns;
        copies_.arrived.sizes.push_back(block[kWithinCopies]);
        rows_.arrived.sizes.push_back(block[kWithinRows]);
        capacity_ += block[kWithinCapacity];
      }
      copies_.within.to.push_back(copies);
      rows_.within.to.push_back(rows);
    }
    for (Ways* const ways : {&copies_, &rows_}) {
      ways->arrived.A = R;
      for (int64_t r = 0; r < R; ++r) {
        const auto first = ways->arrived.sizes.begin() + r * N;
        ways->within.from.push_back(std::accumulate(first, first + N, int64_t{0}));
      }
    }
  }

  // Forwards the routing of tokens that arrived at this rank to the ranks of its node that have
  // their experts; returns the routing that this rank receives, in canonical order.
  CopyRouting pass_on(const at::Tensor& received) {
    const int64_t R = within().size(), first = across().rank() * R, last = received.size(1) - 1;
    const CopyRouting came = read_routing(received.narrow(1, 0, last), choices_, score_type_);
    const at::Tensor index = received.select(1, last).to(at::kLong);
    to_ranks_ = Copies(experts_->table, came.ids_CK, {.first = first, .count = R}, 0, index);
    const int64_t sent = copies_.within.sent(), rows = rows_.within.sent();
    const at::Tensor packed_routing =
        to_ranks_.pack_routing(came.scores_CK, RoutingFormat::kLocalIds);
    to_ranks_.trim(sent);
    if (exact()) {
      // Rows come back in the order (rank, copy, slot), and go on as (copy, slot, rank).
      const at::Tensor place = to_ranks_.sum_of_rows(rows).slot_row.reshape({-1});
      back_order_ = place.index_select(0, at::nonzero_static(place.ge(0), rows).squeeze(1));
    }
    at::Tensor arrived;
    send_rows(within(), copies_.within, packed_routing.narrow(0, 0, sent), arrived).wait();
    return read_routing(copies_.arrived.exchange(arrived), choices_, score_type_);
  }

  void keep_sums() {
    if (exact()) {  // they come as (node, token, slot, rank of the node)
      sums_ = to_nodes_.sum_of_rows(rows_.across.sent());
      slot_sums_ = to_nodes_.sum_of_slots(rows_.across.sent());
    } else {
      sums_ = to_nodes_.sum_of_copies();
      node_sums_ = to_ranks_.sum_of_copies();
    }
  }

  at::Tensor source_rows(const at::Tensor& rows_ND) const override {
    at::Tensor arrived;
    send_rows(within(), copies_.within, rows_ND.index_select(0, to_ranks_.tokens()), arrived)
        .wait();
    const at::Tensor copies_CD = copies_.arrived.exchange(arrived);
    return exact() ? copies_CD.index_select(0, copy_R_) : copies_CD;
  }

  // The way within the node is waited for here, the way across is begun.
  Traveling sent_back(const at::Tensor& y_SX) const override {
    const Ways& ways = exact() ? rows_ : copies_;
    const at::Tensor y = ways.arrived.exchanged().exchange(y_SX);
    const at::Tensor of_node = returned_rows(within(), ways.within, y);
    const at::Tensor crossing =
        exact() ? of_node.index_select(0, back_order_) : combine(of_node, node_sums_);
    Traveling out;
    out.pending = return_rows(across(), ways.across, crossing, out.rows);
    return out;
  }

  Copies to_nodes_, to_ranks_;
  Ways copies_, rows_;     // rows_: kExact
  int64_t capacity_ = 0;   // of all ranks together
  Traveling routing_, x_;  // across, until receive_rows()
  Plan node_sums_;         // kFast: sums the rows that come back within the node
  at::Tensor back_order_;  // kExact: the order in which that goes on across
  at::Tensor copy_R_;      // kExact: the received copy of each source row
};

}  // namespace

std::unique_ptr<Dispatcher> two_level_dispatcher(const NodeGroups& groups,
                                                 const ExpertPlacement& placement,
                                                 DispatchMode mode, WireType wire) {
  const int64_t nodes = groups.across->size(), ranks = groups.within->size();
  TROUPE_CHECK(nodes * ranks == groups.all->size(), "-", nodes, "nodes of", ranks, "ranks are not",
               groups.all->description());
  return group_dispatcher({.name = "two-level", .begin = begin_exchange<TwoLevelExchange>}, groups,
                          placement, {.mode = mode, .wire = wire});
}

std::unique_ptr<Dispatcher> TwoLevelDispatch::build(const NodeGroups& groups,
                                                    const ExpertPlacement& placement,
                                                    const DispatcherOptions& options) const {
  return two_level_dispatcher(groups, placement, options.mode, options.wire);
}

std::string TwoLevelDispatch::why(const ExpertRanks& ranks) const {
  return std::to_string(ranks.ranks) + " ranks share experts, over " +
         std::to_string(ranks.ranks / ranks.node) + " nodes of " + std::to_string(ranks.node);
}

Traffic TwoLevelDispatch::traffic(const TrafficShape& s) const {
  const double W = s.ranks, R = s.node, nodes = s.holders(W / R);
  Traffic out{.received = s.met()};
  const auto add = [&](TrafficRows what, double across, double within) {
    out.messages.push_back({TrafficRanks::kAcross, what, across, 1 - R / W});
    out.messages.push_back({TrafficRanks::kWithin, what, within, 1 - 1 / R});
  };
  add(TrafficRows::kOut, nodes, s.met());
  add(TrafficRows::kBack, s.exact ? s.top_k : nodes, s.back());
  add(TrafficRows::kCounts, 0, 0);
  return out;
}

}  // namespace troupe
