// Keys and values of other ranks of a context group, brought to those whose queries see them, and
// their gradients brought home (rules CX6, CX7):
//
//   fetched(x)   x [T, X] of own tokens to [P, X]: the rows that this rank's queries see, own ones
//                among them, in the order of the plan (distributed/mesh/key_plan.h). One exchange,
//                whose sizes every rank knows.
//                Backward: the gradients of others' rows go back by the reverse exchange, in x's
//                type. A row's are added in the order of the ranks, in f32 (f64 for f64), and
//                rounded once.
//
// All ranks make the same calls, also with no rows. A group of one sends nothing, and the plan's
// order is then x's. What fetched() gives is not kept for backward by operators of this library:
// the first backward that reads it exchanges again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/transfer_monitor.h"
#include "troupe/distributed/mesh/key_plan.h"

namespace troupe {

// A KeyPlan with its lists of rows on the device.
struct KeyRows {
  std::vector<AttentionSegment> segments = {};
  std::vector<int64_t> from_rows = {}, to_rows = {};
  at::Tensor sent, order;  // int64
};
KeyRows key_rows(const KeyPlan& plan, const c10::Device& device);

class KvExchange {
 public:
  KvExchange() : KvExchange(std::make_shared<ProcessGroup>()) {}
  explicit KvExchange(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  KvExchange watched(TransferMonitor watch) const;  // the same, and its transfers are Phase::kKeys

  int64_t ranks() const { return group_->size(); }
  int64_t rank() const { return alone() ? 0 : group_->rank(); }
  bool alone() const { return ranks() == 1; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  at::Tensor fetched(const at::Tensor& own_TX, const std::shared_ptr<const KeyRows>& rows) const;

 private:
  at::Tensor fetch(const at::Tensor& own_TX, const KeyRows& rows) const;
  at::Tensor bring_home(const at::Tensor& grad_PX, int64_t own, const KeyRows& rows) const;

  std::shared_ptr<ProcessGroup> group_;
  TransferMonitor watch_ = {};
};

}  // namespace troupe
