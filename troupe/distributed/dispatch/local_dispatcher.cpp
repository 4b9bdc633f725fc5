#include "troupe/distributed/dispatch/local_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/owner_table.h"
#include "troupe/distributed/dispatch/rank_plan.h"
#include "troupe/ops/routing_plan.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// What it is given it returns.
class LocalExchange : public RowExchange {
 public:
  explicit LocalExchange(ExpertRows rows) : rows_(std::move(rows)) {}

  ExpertRows receive_rows() override { return std::exchange(rows_, {}); }
  void send_results(const at::Tensor& y_SD) override { y_SD_ = y_SD; }
  at::Tensor receive_results() override { return std::exchange(y_SD_, {}); }
  void send_grads(const at::Tensor& grad_out_TD) override { grad_SD_ = grad_out_TD; }
  at::Tensor receive_grads() override { return std::exchange(grad_SD_, {}); }
  void send_row_grads(const at::Tensor& grad_source_SD, const at::Tensor& grad_scores_SK) override {
    grads_ = {grad_source_SD, grad_scores_SK};
  }
  DispatchGradients receive_row_grads() override { return std::exchange(grads_, {}); }

 private:
  ExpertRows rows_;
  at::Tensor y_SD_, grad_SD_;
  DispatchGradients grads_;
};

class LocalDispatcher : public Dispatcher {
 public:
  explicit LocalDispatcher(int64_t experts) : placement_(contiguous(experts, 1)) {}

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    ExpertRows rows{.source_SD = x_TD, .scores_SK = routed.scores_TK, .plan = {}};
    rows.plan = rows_plan(within_budget(routed.ids_TK, routed.budget, rows.lost), routed);
    return std::make_unique<LocalExchange>(std::move(rows));
  }

  DispatcherInfo info() const override {
    return {.description = "local: all experts in this process"};
  }
  void place(const ExpertPlacement&) override {
    fail(Code::kBadValue, "placement", "of experts that are all in one process cannot be another");
  }

 protected:
  explicit LocalDispatcher(ExpertPlacement placement) : placement_(std::move(placement)) {}

  Plan rows_plan(const at::Tensor& ids_SK, const Routed& routed) const {
    return routing_plan(ids_SK, {.experts = placement_.experts(),
                                 .alignment = routed.alignment,
                                 .capacity = routed.capacity});
  }

  const ExpertPlacement placement_;
};

// Source rows are (rank, token): rank w's copy of token t is row w T + t.
class VirtualRanksExchange : public LocalExchange {
 public:
  VirtualRanksExchange(ExpertRows rows, int64_t ranks)
      : LocalExchange(std::move(rows)), ranks_(ranks) {}

  at::Tensor receive_results() override { return sum(LocalExchange::receive_results()); }

  void send_grads(const at::Tensor& grad_out_TD) override {
    const int64_t T = grad_out_TD.size(0), D = grad_out_TD.size(1);
    LocalExchange::send_grads(
        grad_out_TD.unsqueeze(0).expand({ranks_, T, D}).reshape({ranks_ * T, D}));
  }

  DispatchGradients receive_row_grads() override {
    const DispatchGradients parts = LocalExchange::receive_row_grads();
    return {sum(parts.x_TD), sum(parts.scores_TK)};
  }

 private:
  // [W T, X] to [T, X]: the ranks' parts in rank order, in f32, rounded once.
  at::Tensor sum(const at::Tensor& x) const {
    if (!x.defined()) return x;
    const auto wide = wide_type(x);
    const auto parts = x.reshape({ranks_, -1, x.size(1)}).unbind();
    at::Tensor total = parts[0].to(wide);
    for (size_t w = 1; w < parts.size(); ++w) total = total + parts[w];
    return total.to(x.scalar_type());
  }

  const int64_t ranks_;
};

class VirtualRanksDispatcher : public LocalDispatcher {
 public:
  explicit VirtualRanksDispatcher(ExpertPlacement placement)
      : LocalDispatcher(std::move(placement)), owners_(placement_) {
    TROUPE_CHECK(placement_.slices() == 1, "virtual ranks cannot hold slices of experts");
  }

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    const int64_t W = placement_.ranks(), T = x_TD.size(0), D = x_TD.size(1);
    const int64_t K = routed.ids_TK.size(1);
    const at::Tensor owner_TK = owners_.owners(routed.ids_TK);
    ExpertRows rows{
        .source_SD = x_TD.unsqueeze(0).expand({W, T, D}).reshape({W * T, D}),
        .scores_SK = routed.scores_TK.unsqueeze(0).expand({W, T, K}).reshape({W * T, K}),
        .plan = {}};
    std::vector<at::Tensor> ids;
    for (int64_t w = 0; w < W; ++w) {
      const at::Tensor own = routed.ids_TK.masked_fill(owner_TK.ne(w), -1);
      ids.push_back(within_budget(own, routed.budget, rows.lost));
    }
    rows.plan = rows_plan(at::cat(ids), routed);
    return std::make_unique<VirtualRanksExchange>(std::move(rows), W);
  }

  DispatcherInfo info() const override {
    return {.description = std::to_string(placement_.ranks()) + " virtual ranks in this process"};
  }

 private:
  OwnerTable owners_;
};

}  // namespace

std::unique_ptr<Dispatcher> local_dispatcher(int64_t experts) {
  return std::make_unique<LocalDispatcher>(experts);
}

std::unique_ptr<Dispatcher> virtual_ranks_dispatcher(const ExpertPlacement& placement) {
  return std::make_unique<VirtualRanksDispatcher>(placement);
}

}  // namespace troupe
