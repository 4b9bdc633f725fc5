#include "troupe/distributed/dispatch/watched_dispatcher.h"

#include <utility>

namespace troupe {
namespace {

class WatchedDispatcher : public Dispatcher {
 public:
  WatchedDispatcher(std::unique_ptr<Dispatcher> inner, std::shared_ptr<Pulse> pulse,
                    const Faults& faults)
      : inner_(std::move(inner)), pulse_(std::move(pulse)), faults_(faults) {}

  Handle stage(const at::Tensor& x_TD) override { return inner_->stage(x_TD); }
  void route(const Handle& handle, const Routed& routed) override {
    const PulseScope scope = begin(Phase::kDispatch, "dispatch");
    inner_->route(handle, routed);
  }
  ExpertRows rows(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kDispatch);
    return inner_->rows(handle);
  }
  at::Tensor combine(const Handle& handle, const at::Tensor& y_SD) override {
    const PulseScope scope = begin(Phase::kCombine, "combine");
    return inner_->combine(handle, y_SD);
  }

  // Backward goes the same ways: gradients of results to the experts, of rows back.
  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    const PulseScope scope(*pulse_, Phase::kDispatch);
    inner_->stage_grad(handle, grad_out_TD);
  }
  at::Tensor rows_grad(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kDispatch);
    return inner_->rows_grad(handle);
  }
  DispatchGradients combine_grad(const Handle& handle, const at::Tensor& grad_source_SD,
                                 const at::Tensor& grad_scores_SK) override {
    const PulseScope scope(*pulse_, Phase::kCombine);
    return inner_->combine_grad(handle, grad_source_SD, grad_scores_SK);
  }
  void release(const Handle& handle) override { inner_->release(handle); }

  bool needs_host_counts() const override { return inner_->needs_host_counts(); }
  const Placement& placement() const override { return inner_->placement(); }
  void place(const Placement& placement) override { inner_->place(placement); }
  int64_t rank() const override { return inner_->rank(); }
  bool holds_all_experts() const override { return inner_->holds_all_experts(); }
  std::string description() const override { return inner_->description(); }

 private:
  PulseScope begin(Phase phase, const char* point) const {
    if (!faults_.empty()) {
      const PulseScope scope(*pulse_, phase);
      faults_.at(point, pulse_->now().done);
    }
    return {*pulse_, phase};
  }

  const std::unique_ptr<Dispatcher> inner_;
  const std::shared_ptr<Pulse> pulse_;
  const Faults& faults_;
};

}  // namespace

std::unique_ptr<Dispatcher> watched_dispatcher(std::unique_ptr<Dispatcher> inner,
                                               std::shared_ptr<Pulse> pulse, const Faults& faults) {
  return std::make_unique<WatchedDispatcher>(std::move(inner), std::move(pulse), faults);
}

}  // namespace troupe
