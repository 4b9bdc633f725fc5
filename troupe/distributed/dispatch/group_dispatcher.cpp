#include "troupe/distributed/dispatch/group_dispatcher.h"

#include <iterator>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/rank_plan.h"
#include "troupe/distributed/dispatch/return_sums.h"
#include "troupe/distributed/dispatch/wire.h"
#include "troupe/ops/combine.h"

namespace troupe {
namespace {

class GroupDispatcher : public Dispatcher {
 public:
  GroupDispatcher(GroupDispatcherForm form, NodeGroups groups, const ExpertPlacement& placement,
                  const DispatcherOptions& options)
      : form_(std::move(form)),
        experts_(std::make_shared<ExpertGroup>(std::move(groups), placement, options)) {}

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    check_routed(routed, x_TD);
    return form_.begin(experts_, x_TD, routed);
  }

  DispatcherInfo info() const override {
    const ExpertPlacement& placement = experts_->placement;
    const ProcessGroup& ranks = *experts_->groups.all;
    DispatcherInfo out{.description = form_.name + ", " + to_text(experts_->options.mode) + ": " +
                                      std::to_string(placement.experts()) + " experts on " +
                                      ranks.description(),
                       .host_reads = form_.host_reads,
                       .held = placement.held_by(ranks.rank()),
                       .slices = placement.slices(),
                       .slice = placement.slice_of(ranks.rank())};
    const WireType wire = experts_->options.wire;
    if (wire != WireType::kNative) out.description += ", rows out in " + to_text(wire);
    if (experts_->groups.across != nullptr) {
      out.description += ", " + std::to_string(experts_->groups.across->size()) + " nodes of " +
                         std::to_string(experts_->groups.within->size());
    }
    return out;
  }

  // What is in flight goes on with the old placement.
  void place(const ExpertPlacement& placement) override {
    const ExpertPlacement& old = experts_->placement;
    TROUPE_CHECK(placement.experts() == old.experts() && placement.slices() == old.slices(), "-",
                 placement.experts(), "experts in", placement.slices(), "slices are not the",
                 old.experts(), "in", old.slices());
    auto changed = std::make_shared<ExpertGroup>(experts_->groups, placement, experts_->options);
    TROUPE_CHECK(changed->held == experts_->held, "this rank would hold", changed->held,
                 "experts, and holds", experts_->held);
    experts_ = std::move(changed);
  }

 private:
  const GroupDispatcherForm form_;
  std::shared_ptr<ExpertGroup> experts_;
};

}  // namespace

ExpertGroup::ExpertGroup(NodeGroups of, const ExpertPlacement& placed,
                         const DispatcherOptions& asked)
    : groups(std::move(of)),
      placement(placed),
      options(asked),
      table(placed),
      held(std::ssize(placed.held_by(groups.all->rank()))) {
  check_placed_on(placement, *groups.all);
  TROUPE_CHECK(!exact() || asked.wire == WireType::kNative, "rows that wire", to_text(asked.wire),
               "rounds are not those of one process: mode", "exact goes with wire native");
  TROUPE_CHECK(!asked.by_source || exact(),
               "by_source needs mode exact, in which each row keeps its source");
  if (groups.all->size() == 1) options.wire = WireType::kNative;
}

GroupExchange::GroupExchange(std::shared_ptr<ExpertGroup> experts, const at::Tensor& x_TD,
                             const Routed& routed)
    : experts_(std::move(experts)),
      choices_(routed.ids_TK.size(1)),
      score_type_(routed.scores_TK.scalar_type()),
      alignment_(routed.alignment),
      budget_(routed.budget),
      width_(x_TD.size(1)),
      type_(x_TD.scalar_type()) {}

void GroupExchange::send_row_grads(const at::Tensor& grad_source_SD,
                                   const at::Tensor& grad_scores_SK) {
  if (grad_source_SD.defined()) grad_source_ = sent_back(grad_source_SD);
  if (grad_scores_SK.defined()) grad_scores_ = sent_back(grad_scores_SK);
}

DispatchGradients GroupExchange::receive_row_grads() {
  DispatchGradients out;
  if (grad_source_.rows.defined()) out.x_TD = summed(grad_source_, sums_);
  if (!grad_scores_.rows.defined()) return out;
  out.scores_TK = summed(grad_scores_, exact() ? slot_sums_ : sums_).reshape({-1, choices_});
  return out;
}

at::Tensor GroupExchange::arrived(Traveling& what) const {
  what.pending.wait();
  return std::exchange(what.rows, {});
}

at::Tensor GroupExchange::summed(Traveling& what, const Plan& sums) const {
  return combine(arrived(what), sums);
}

at::Tensor GroupExchange::packed(const at::Tensor& x_TD) const {
  const WireType wire = experts_->options.wire;
  return wire == WireType::kNative ? x_TD : packed_rows(wire, x_TD);
}

at::Tensor GroupExchange::packed(const at::Tensor& x_TD, const at::Tensor& tokens_N) const {
  const WireType wire = experts_->options.wire;
  return wire == WireType::kNative ? x_TD.index_select(0, tokens_N)
                                   : packed_rows(wire, x_TD, tokens_N);
}

at::Tensor GroupExchange::unpacked(const at::Tensor& rows_SX) const {
  const WireType wire = experts_->options.wire;
  return wire == WireType::kNative ? rows_SX : unpacked_rows(wire, rows_SX, width_, type_);
}

Plan GroupExchange::rows_plan(const at::Tensor& ids_SK, int64_t capacity, at::Tensor& lost,
                              int64_t rows) const {
  return plan_of_rank(within_budget(ids_SK, budget_, lost),
                      {.experts = experts_->held, .alignment = alignment_, .capacity = capacity},
                      rows);
}

void GroupExchange::send_first(ProcessGroup& group, const RankSplit& split, const at::Tensor& most,
                               Traveling& what) {
  what.pending = send_rows(group, split, most.narrow(0, 0, split.sent()), what.rows);
}

void GroupExchange::keep_gathered_sums(const at::Tensor& ids_TK, int64_t most) {
  GatheredSums sums =
      sums_of_gathered(experts_->table.sent(ids_TK), experts_->placement.slices(), most, exact());
  sums_ = std::move(sums.sums);
  slot_sums_ = std::move(sums.slot_sums);
}

std::unique_ptr<Dispatcher> group_dispatcher(GroupDispatcherForm form, NodeGroups groups,
                                             const ExpertPlacement& placement,
                                             const DispatcherOptions& options) {
  return std::make_unique<GroupDispatcher>(std::move(form), std::move(groups), placement, options);
}

}  // namespace troupe
