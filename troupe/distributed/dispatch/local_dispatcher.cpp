#include "troupe/distributed/dispatch/local_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/owner_table.h"
#include "troupe/distributed/dispatch/rank_plan.h"
#include "troupe/ops/routing_plan.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

struct LocalLease : Lease {
  at::Tensor x_TD, source_SD, scores_SK, y_SD, grad_SD, lost;
  DispatchGradients grads;
  Plan plan;
};

LocalLease& of(const Handle& handle) {
  TROUPE_CHECK(handle != nullptr, "the handle's lease has ended");
  return static_cast<LocalLease&>(*handle);
}

class LocalDispatcher : public Dispatcher {
 public:
  explicit LocalDispatcher(int64_t experts) : placement_(contiguous(experts, 1)) {}

  Handle stage(const at::Tensor& x_TD) override {
    auto lease = std::make_shared<LocalLease>();
    lease->x_TD = x_TD;
    return lease;
  }

  void route(const Handle& handle, const Routed& routed) override {
    LocalLease& lease = of(handle);
    lease.source_SD = lease.x_TD;
    lease.scores_SK = routed.scores_TK;
    make_plan(lease, routed, within_budget(routed.ids_TK, routed.budget, lease.lost));
  }

  void send(const Handle& /*handle*/) override {}

  ExpertRows rows(const Handle& handle) override {
    const LocalLease& lease = of(handle);
    return {lease.source_SD, lease.scores_SK, lease.plan, lease.lost};
  }

  void send_back(const Handle& handle, const at::Tensor& y_SD) override { of(handle).y_SD = y_SD; }
  at::Tensor combine(const Handle& handle) override { return std::exchange(of(handle).y_SD, {}); }
  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    of(handle).grad_SD = grad_out_TD;
  }
  at::Tensor rows_grad(const Handle& handle) override { return of(handle).grad_SD; }
  void send_back_grad(const Handle& handle, const at::Tensor& grad_source_SD,
                      const at::Tensor& grad_scores_SK) override {
    of(handle).grads = {grad_source_SD, grad_scores_SK};
  }
  DispatchGradients combine_grad(const Handle& handle) override {
    return std::exchange(of(handle).grads, {});
  }
  void release(const Handle& handle) override { of(handle) = LocalLease(); }

  bool needs_host_counts() const override { return false; }
  const ExpertPlacement& placement() const override { return placement_; }
  void place(const ExpertPlacement&) override {
    fail(Code::kBadValue, "placement", "of experts that are all in one process cannot be another");
  }
  int64_t rank() const override { return 0; }
  bool holds_all_experts() const override { return true; }
  std::string description() const override { return "local: all experts in this process"; }

 protected:
  explicit LocalDispatcher(ExpertPlacement placement) : placement_(std::move(placement)) {}

  void make_plan(LocalLease& lease, const Routed& routed, const at::Tensor& ids_SK) const {
    lease.plan = routing_plan(ids_SK, {.experts = placement_.experts(),
                                       .alignment = routed.alignment,
                                       .capacity = routed.capacity});
  }

  ExpertPlacement placement_;
};

// Source rows are (rank, token): rank w's copy of token t is row w T + t.
class VirtualRanksDispatcher : public LocalDispatcher {
 public:
  explicit VirtualRanksDispatcher(ExpertPlacement placement)
      : LocalDispatcher(std::move(placement)), owners_(placement_) {
    TROUPE_CHECK(placement_.slices() == 1, "virtual ranks cannot hold slices of experts");
  }

  void route(const Handle& handle, const Routed& routed) override {
    LocalLease& lease = of(handle);
    const int64_t W = placement_.ranks(), T = lease.x_TD.size(0), D = lease.x_TD.size(1);
    const at::Tensor owner_TK = owners_.owners(routed.ids_TK);
    std::vector<at::Tensor> ids;
    for (int64_t w = 0; w < W; ++w) {
      const at::Tensor own = routed.ids_TK.masked_fill(owner_TK.ne(w), -1);
      ids.push_back(within_budget(own, routed.budget, lease.lost));
    }
    const int64_t K = routed.ids_TK.size(1);
    lease.source_SD = lease.x_TD.unsqueeze(0).expand({W, T, D}).reshape({W * T, D});
    lease.scores_SK = routed.scores_TK.unsqueeze(0).expand({W, T, K}).reshape({W * T, K});
    make_plan(lease, routed, at::cat(ids));
  }

  at::Tensor combine(const Handle& handle) override {
    return sum(LocalDispatcher::combine(handle));
  }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    const int64_t W = placement_.ranks(), T = grad_out_TD.size(0), D = grad_out_TD.size(1);
    of(handle).grad_SD = grad_out_TD.unsqueeze(0).expand({W, T, D}).reshape({W * T, D});
  }

  DispatchGradients combine_grad(const Handle& handle) override {
    const DispatchGradients parts = LocalDispatcher::combine_grad(handle);
    return {sum(parts.x_TD), sum(parts.scores_TK)};
  }

  std::string description() const override {
    return std::to_string(placement_.ranks()) + " virtual ranks in this process";
  }

 private:
  // [W T, X] to [T, X]: the ranks' parts in rank order, in f32, rounded once.
  at::Tensor sum(const at::Tensor& x) const {
    if (!x.defined()) return x;
    const auto wide = wide_type(x);
    const auto parts = x.reshape({placement_.ranks(), -1, x.size(1)}).unbind();
    at::Tensor total = parts[0].to(wide);
    for (size_t w = 1; w < parts.size(); ++w) total = total + parts[w];
    return total.to(x.scalar_type());
  }

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
