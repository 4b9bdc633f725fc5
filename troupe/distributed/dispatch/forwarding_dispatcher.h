// A dispatcher that calls another one: the base of those that change what is sent, or wrap its
// exchanges (ForwardingExchange in row_exchange.h).
#pragma once

#include <memory>
#include <utility>

#include "troupe/distributed/dispatch/dispatcher.h"

namespace troupe {

class ForwardingDispatcher : public Dispatcher {
 public:
  explicit ForwardingDispatcher(std::unique_ptr<Dispatcher> inner) : inner_(std::move(inner)) {}

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    return inner_->send(x_TD, routed);
  }
  DispatcherInfo info() const override { return inner_->info(); }
  void place(const ExpertPlacement& placement) override { inner_->place(placement); }

 private:
  const std::unique_ptr<Dispatcher> inner_;
};

}  // namespace troupe
