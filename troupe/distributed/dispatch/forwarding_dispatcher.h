// A dispatcher that calls another one: the base of those that add something to some calls. Such a
// class overrides these and calls the base's.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "troupe/distributed/dispatch/dispatcher.h"

namespace troupe {

class ForwardingDispatcher : public Dispatcher {
 public:
  explicit ForwardingDispatcher(std::unique_ptr<Dispatcher> inner) : inner_(std::move(inner)) {}

  Handle stage(const at::Tensor& x_TD) override { return inner_->stage(x_TD); }
  void route(const Handle& handle, const Routed& routed) override { inner_->route(handle, routed); }
  void send(const Handle& handle) override { inner_->send(handle); }
  ExpertRows rows(const Handle& handle) override { return inner_->rows(handle); }
  void send_back(const Handle& handle, const at::Tensor& y_SD) override {
    inner_->send_back(handle, y_SD);
  }
  at::Tensor combine(const Handle& handle) override { return inner_->combine(handle); }

  void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) override {
    inner_->stage_grad(handle, grad_out_TD);
  }
  at::Tensor rows_grad(const Handle& handle) override { return inner_->rows_grad(handle); }
  void send_back_grad(const Handle& handle, const at::Tensor& grad_source_SD,
                      const at::Tensor& grad_scores_SK) override {
    inner_->send_back_grad(handle, grad_source_SD, grad_scores_SK);
  }
  DispatchGradients combine_grad(const Handle& handle) override {
    return inner_->combine_grad(handle);
  }
  void release(const Handle& handle) override { inner_->release(handle); }

  bool needs_host_counts() const override { return inner_->needs_host_counts(); }
  const ExpertPlacement& placement() const override { return inner_->placement(); }
  void place(const ExpertPlacement& placement) override { inner_->place(placement); }
  int64_t rank() const override { return inner_->rank(); }
  bool holds_all_experts() const override { return inner_->holds_all_experts(); }
  std::string description() const override { return inner_->description(); }

 private:
  const std::unique_ptr<Dispatcher> inner_;
};

}  // namespace troupe
