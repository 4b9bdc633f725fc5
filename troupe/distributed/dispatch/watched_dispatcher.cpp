#include "troupe/distributed/dispatch/watched_dispatcher.h"

#include <utility>

#include "troupe/distributed/dispatch/forwarding_dispatcher.h"

namespace troupe {
namespace {

class WatchedDispatcher : public ForwardingDispatcher {
 public:
  WatchedDispatcher(std::unique_ptr<Dispatcher> inner, std::shared_ptr<Pulse> pulse,
                    const Faults& faults)
      : ForwardingDispatcher(std::move(inner)), pulse_(std::move(pulse)), faults_(faults) {}

  void route(const Handle& handle, const Routed& routed) override {
    const PulseScope scope = begin(Phase::kDispatch, "dispatch");
    ForwardingDispatcher::route(handle, routed);
  }
  void send(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kDispatch, PulseScope::Within());
    ForwardingDispatcher::send(handle);
  }
  ExpertRows rows(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kDispatch, PulseScope::Within());
    return ForwardingDispatcher::rows(handle);
  }
  void send_back(const Handle& handle, const at::Tensor& y_SD) override {
    const PulseScope scope = begin(Phase::kCombine, "combine");
    ForwardingDispatcher::send_back(handle, y_SD);
  }
  at::Tensor combine(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kCombine, PulseScope::Within());
    return ForwardingDispatcher::combine(handle);
  }

  // Backward goes the same ways: gradients of results to the experts, of rows back.
  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    const PulseScope scope(*pulse_, Phase::kDispatch, PulseScope::Within());
    ForwardingDispatcher::stage_grad(handle, grad_out_TD);
  }
  at::Tensor rows_grad(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kDispatch, PulseScope::Within());
    return ForwardingDispatcher::rows_grad(handle);
  }
  void send_back_grad(const Handle& handle, const at::Tensor& grad_source_SD,
                      const at::Tensor& grad_scores_SK) override {
    const PulseScope scope(*pulse_, Phase::kCombine, PulseScope::Within());
    ForwardingDispatcher::send_back_grad(handle, grad_source_SD, grad_scores_SK);
  }
  DispatchGradients combine_grad(const Handle& handle) override {
    const PulseScope scope(*pulse_, Phase::kCombine, PulseScope::Within());
    return ForwardingDispatcher::combine_grad(handle);
  }

 private:
  PulseScope begin(Phase phase, const char* point) const {
    if (!faults_.empty()) {
      const PulseScope scope(*pulse_, phase, PulseScope::Within());
      faults_.at(point, pulse_->now().done);
    }
    return {*pulse_, phase, PulseScope::Within()};
  }

  const std::shared_ptr<Pulse> pulse_;
  const Faults& faults_;
};

}  // namespace

std::unique_ptr<Dispatcher> watched_dispatcher(std::unique_ptr<Dispatcher> inner,
                                               std::shared_ptr<Pulse> pulse, const Faults& faults) {
  return std::make_unique<WatchedDispatcher>(std::move(inner), std::move(pulse), faults);
}

}  // namespace troupe
