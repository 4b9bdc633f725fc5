#include "troupe/distributed/dispatch/watched_dispatcher.h"

#include <utility>

#include "troupe/distributed/dispatch/forwarding_dispatcher.h"

namespace troupe {
namespace {

// The status of a rank while it moves rows, and the faults that a test asks for there.
class Watch {
 public:
  Watch(std::shared_ptr<Pulse> pulse, const Faults& faults)
      : pulse_(std::move(pulse)), faults_(&faults) {}

  PulseScope in(Phase phase) const { return {*pulse_, phase, PulseScope::Within()}; }
  PulseScope begin(Phase phase, const char* point) const {
    if (!faults_->empty()) {
      const PulseScope scope = in(phase);
      faults_->at(point, pulse_->now().done);
    }
    return in(phase);
  }

 private:
  std::shared_ptr<Pulse> pulse_;
  const Faults* faults_;
};

// Backward goes the same ways: gradients of results to the experts, of rows back.
class WatchedExchange : public ForwardingExchange {
 public:
  WatchedExchange(std::unique_ptr<RowExchange> inner, Watch watch)
      : ForwardingExchange(std::move(inner)), watch_(std::move(watch)) {}

  ExpertRows receive_rows() override {
    const PulseScope scope = watch_.in(Phase::kDispatch);
    return ForwardingExchange::receive_rows();
  }
  void send_results(const at::Tensor& y_SD) override {
    const PulseScope scope = watch_.begin(Phase::kCombine, "combine");
    ForwardingExchange::send_results(y_SD);
  }
  at::Tensor receive_results() override {
    const PulseScope scope = watch_.in(Phase::kCombine);
    return ForwardingExchange::receive_results();
  }
  void send_grads(const at::Tensor& grad_out_TD) override {
    const PulseScope scope = watch_.in(Phase::kDispatch);
    ForwardingExchange::send_grads(grad_out_TD);
  }
  at::Tensor receive_grads() override {
    const PulseScope scope = watch_.in(Phase::kDispatch);
    return ForwardingExchange::receive_grads();
  }
  void send_row_grads(const at::Tensor& grad_source_SD, const at::Tensor& grad_scores_SK) override {
    const PulseScope scope = watch_.in(Phase::kCombine);
    ForwardingExchange::send_row_grads(grad_source_SD, grad_scores_SK);
  }
  DispatchGradients receive_row_grads() override {
    const PulseScope scope = watch_.in(Phase::kCombine);
    return ForwardingExchange::receive_row_grads();
  }

 private:
  const Watch watch_;
};

class WatchedDispatcher : public ForwardingDispatcher {
 public:
  WatchedDispatcher(std::unique_ptr<Dispatcher> inner, Watch watch)
      : ForwardingDispatcher(std::move(inner)), watch_(std::move(watch)) {}

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    const PulseScope scope = watch_.begin(Phase::kDispatch, "dispatch");
    return std::make_unique<WatchedExchange>(ForwardingDispatcher::send(x_TD, routed), watch_);
  }

 private:
  const Watch watch_;
};

}  // namespace

std::unique_ptr<Dispatcher> watched_dispatcher(std::unique_ptr<Dispatcher> inner,
                                               std::shared_ptr<Pulse> pulse, const Faults& faults) {
  return std::make_unique<WatchedDispatcher>(std::move(inner), Watch(std::move(pulse), faults));
}

}  // namespace troupe
