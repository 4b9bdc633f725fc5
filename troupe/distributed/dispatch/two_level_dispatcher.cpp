#include "troupe/distributed/dispatch/two_level_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/stack.h>

#include <numeric>
#include <utility>
#include <vector>

#include "troupe/distributed/dispatch/copies.h"
#include "troupe/distributed/dispatch/group_dispatcher.h"
#include "troupe/distributed/group/host_copy.h"
#include "troupe/distributed/group/split.h"

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

struct TwoLevelLease : GroupLease {
  // From route() to rows(): what goes out, of as many copies as there may be, and numbers.
  HostCopy counts;
  at::Tensor send_routing, send_x;
  Travelling routing, x;  // across, from send() to rows()
  int64_t capacity = 0;   // of all ranks together
  Copies to_nodes, to_ranks;
  Ways copies, rows;      // rows: kExact
  Plan node_sums;         // kFast: of what comes back within the node
  at::Tensor back_order;  // kExact: the order in which that goes on across
  at::Tensor copy_R;      // kExact: the received copy of each source row
};

class TwoLevelDispatcher : public GroupDispatcher<TwoLevelLease> {
 public:
  TwoLevelDispatcher(const NodeGroups& groups, const ExpertPlacement& placement, DispatchMode mode,
                     WireType wire)
      : GroupDispatcher("two-level", groups.all, placement, mode, wire),
        across_(groups.across),
        within_(groups.within) {
    TROUPE_CHECK(across_->size() * within_->size() == ranks_->size(), "-", across_->size(),
                 "nodes of", within_->size(), "ranks are not", ranks_->description());
  }

  void send(const Handle& handle) override {
    TwoLevelLease& lease = of(handle);
    begin_to_send(lease);
    lease.capacity = read_counts(lease);
    const int64_t sent = lease.copies.across.sent();
    const auto begin = [&](at::Tensor& most, Travelling& what) {
      what.pending = send_rows(*across_, lease.copies.across,
                               std::exchange(most, {}).narrow(0, 0, sent), what.rows);
    };
    begin(lease.send_routing, lease.routing);
    begin(lease.send_x, lease.x);
    lease.to_nodes.trim(sent);
  }

  ExpertRows rows(const Handle& handle) override {
    TwoLevelLease& lease = of(handle);
    const Routed routed = take_routed(lease);
    CopyRouting in = pass_on(lease, arrived(lease, lease.routing), routed.scores_TK.scalar_type());
    keep_sums(lease);
    if (exact()) in = one_row_each(in, lease.rows.within.received(), lease.copy_R);
    ExpertRows out{.source_SD = {}, .scores_SK = in.scores_CK, .plan = {}};
    const at::Tensor ids = within_budget(in.ids_CK, routed.budget, out.lost);
    out.plan = plan_of_rank(
        ids, {.experts = held_, .alignment = routed.alignment, .capacity = lease.capacity},
        lease.rows.within.received());
    out.source_SD = unpacked(lease, source_rows(lease, arrived(lease, lease.x)));
    return out;
  }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    TwoLevelLease& lease = of(handle);
    lease.grad_out.pending =
        send_rows(*across_, lease.copies.across, packed(grad_out_TD, lease.to_nodes.tokens()),
                  lease.grad_out.rows);
  }

  std::string description() const override {
    return GroupDispatcher::description() + ", " + std::to_string(across_->size()) + " nodes of " +
           std::to_string(within_->size());
  }

 private:
  void announce(TwoLevelLease& lease) override {
    const int64_t N = across_->size(), R = within_->size();
    const Routed& routed = lease.routed;
    lease.to_nodes = Copies(table_, routed.ids_TK, {.per = R, .count = N}, routed.capacity);
    const at::Tensor& counts_N = lease.to_nodes.counts();
    const Copies to_all(table_, routed.ids_TK, {.count = N * R});
    const at::Tensor counts_NR = to_all.counts().reshape({N, R, kCountColumns});
    const at::Tensor sent_counts =
        at::cat({counts_N.narrow(1, kCopies, 1), counts_N.narrow(1, kCapacity, 1),
                 counts_NR.select(2, kCopies), counts_NR.select(2, kRows)},
                1);
    const at::Tensor received_counts = exchange_counts(*across_, sent_counts);
    const auto of_rank = [&](int64_t from) {
      return received_counts.narrow(1, from, R).t();
    };  // [R, N]
    const at::Tensor capacity =
        received_counts.select(1, kNodeCapacity).unsqueeze(0).expand({R, N});
    const at::Tensor passed = at::stack({of_rank(kPerRank), of_rank(kPerRank + R), capacity}, 2);
    const at::Tensor within_counts =
        exchange_counts(*within_, passed.reshape({R, N * kWithinColumns}));
    lease.counts = HostCopy(at::cat(
        {sent_counts.reshape({-1}), received_counts.reshape({-1}), within_counts.reshape({-1})}));
    lease.send_routing = lease.to_nodes.pack_routing(routed.scores_TK, RoutingFormat::kIdsAndToken);
    lease.send_x = packed(std::exchange(lease.x_TD, {}), lease.to_nodes.tokens());
  }

  // Returns the capacities of all ranks together.
  int64_t read_counts(TwoLevelLease& lease) const {
    const int64_t N = across_->size(), R = within_->size(), columns = kPerRank + 2 * R;
    const at::Tensor all = lease.counts.read();
    const auto* const sent_counts = all.const_data_ptr<int32_t>();
    const auto* const received_counts = sent_counts + N * columns;
    const auto* const within_counts = received_counts + N * columns;
    const auto sum_of = [&](const int32_t* line, int64_t from) {
      return std::accumulate(line + from, line + from + R, int64_t{0});
    };
    for (int64_t n = 0; n < N; ++n) {
      const auto *const to = sent_counts + n * columns, *const from = received_counts + n * columns;
      lease.copies.across.to.push_back(to[kNodeCopies]);
      lease.copies.across.from.push_back(from[kNodeCopies]);
      lease.rows.across.to.push_back(sum_of(to, kPerRank + R));
      lease.rows.across.from.push_back(sum_of(from, kPerRank + R));
    }
    int64_t capacity = 0;
    for (int64_t r = 0; r < R; ++r) {
      int64_t copies = 0, rows = 0;
      for (int64_t n = 0; n < N; ++n) {
        copies += received_counts[n * columns + kPerRank + r];
        rows += received_counts[n * columns + kPerRank + R + r];
        const auto* const block = within_counts + (r * N + n) * kWithinColumns;
        lease.copies.arrived.sizes.push_back(block[kWithinCopies]);
        lease.rows.arrived.sizes.push_back(block[kWithinRows]);
        capacity += block[kWithinCapacity];
      }
      lease.copies.within.to.push_back(copies);
      lease.rows.within.to.push_back(rows);
    }
    for (Ways* const ways : {&lease.copies, &lease.rows}) {
      ways->arrived.A = R;
      for (int64_t r = 0; r < R; ++r) {
        const auto first = ways->arrived.sizes.begin() + r * N;
        ways->within.from.push_back(std::accumulate(first, first + N, int64_t{0}));
      }
    }
    return capacity;
  }

  // Forwards the routing of tokens that arrived at this rank to the ranks of its node that have
  // their experts; returns the routing that this rank receives, in canonical order.
  CopyRouting pass_on(TwoLevelLease& lease, const at::Tensor& received, at::ScalarType score_type) {
    const int64_t R = within_->size(), first = across_->rank() * R, last = received.size(1) - 1;
    const CopyRouting came = read_routing(received.narrow(1, 0, last), lease.choices, score_type);
    const at::Tensor index = received.select(1, last).to(at::kLong);
    lease.to_ranks = Copies(table_, came.ids_CK, {.first = first, .count = R}, 0, index);
    const int64_t sent = lease.copies.within.sent(), rows = lease.rows.within.sent();
    const at::Tensor packed_routing =
        lease.to_ranks.pack_routing(came.scores_CK, RoutingFormat::kLocalIds);
    lease.to_ranks.trim(sent);
    if (exact()) {
      // Rows come back in the order (rank, copy, slot), and go on as (copy, slot, rank).
      const at::Tensor place = lease.to_ranks.sum_of_rows(rows).slot_row.reshape({-1});
      lease.back_order = place.index_select(0, at::nonzero_static(place.ge(0), rows).squeeze(1));
    }
    at::Tensor arrived;
    send_rows(*within_, lease.copies.within, packed_routing.narrow(0, 0, sent), arrived).wait();
    return read_routing(lease.copies.arrived.exchange(arrived), lease.choices, score_type);
  }

  void keep_sums(TwoLevelLease& lease) const {
    if (exact()) {  // they come as (node, token, slot, rank of the node)
      lease.sums = lease.to_nodes.sum_of_rows(lease.rows.across.sent());
      lease.slot_sums = lease.to_nodes.sum_of_slots(lease.rows.across.sent());
    } else {
      lease.sums = lease.to_nodes.sum_of_copies();
      lease.node_sums = lease.to_ranks.sum_of_copies();
    }
  }

  at::Tensor source_rows(const TwoLevelLease& lease, const at::Tensor& rows_ND) const override {
    at::Tensor arrived;
    send_rows(*within_, lease.copies.within, rows_ND.index_select(0, lease.to_ranks.tokens()),
              arrived)
        .wait();
    const at::Tensor copies_CD = lease.copies.arrived.exchange(arrived);
    return exact() ? copies_CD.index_select(0, lease.copy_R) : copies_CD;
  }

  // The way within the node is waited for here, the way across is begun.
  Travelling sent_back(const TwoLevelLease& lease, const at::Tensor& y_SX) const override {
    const Ways& ways = exact() ? lease.rows : lease.copies;
    const at::Tensor y = ways.arrived.exchanged().exchange(y_SX);
    const at::Tensor of_node = returned_rows(*within_, ways.within, y);
    const at::Tensor crossing = exact() ? of_node.index_select(0, lease.back_order)
                                        : troupe::combine(of_node, lease.node_sums);
    Travelling out;
    out.pending = return_rows(*across_, ways.across, crossing, out.rows);
    return out;
  }

  std::shared_ptr<ProcessGroup> across_, within_;
};

}  // namespace

std::unique_ptr<Dispatcher> two_level_dispatcher(const NodeGroups& groups,
                                                 const ExpertPlacement& placement,
                                                 DispatchMode mode, WireType wire) {
  return std::make_unique<TwoLevelDispatcher>(groups, placement, mode, wire);
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
