// Tokens that are cut over the ranks of a context group become heads that are, and back: the heads
// exchange of DeepSpeed-Ulysses, whose attention sees whole rows of some heads.
//
//   to_heads(x, order)   x [T, R, X] of own tokens, X columns for each rank's heads, to [R T, X]:
//                        own heads' columns of all tokens in the order of the batch
//   to_tokens(y, order)  y [R T, X] to [T, R, X], the reverse
//
// Each is the other's backward. One exchange of equal parts; nothing is added, so no bit depends on
// the number of ranks. order [R T], int64: where each token of the batch is among the ranks' own
// ones, one rank's behind the other's. All ranks make the same calls, also with no tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/transfer_monitor.h"

namespace troupe {

class HeadExchange {
 public:
  // Its transfers are Phase::kKeys to whom `watch` tells of them.
  explicit HeadExchange(std::shared_ptr<ProcessGroup> group, TransferMonitor watch = {})
      : group_(std::move(group)), watch_(std::move(watch)) {}

  int64_t ranks() const { return group_->size(); }
  int64_t rank() const { return ranks() == 1 ? 0 : group_->rank(); }

  at::Tensor to_heads(const at::Tensor& own_TRX, const at::Tensor& order) const;
  at::Tensor to_tokens(const at::Tensor& all_SX, const at::Tensor& order) const;

 private:
  at::Tensor gather_heads(const at::Tensor& own_TRX, const at::Tensor& order) const;
  at::Tensor scatter_heads(const at::Tensor& all_SX, const at::Tensor& order) const;
  // x [R, T, X], part r for rank r, to what each rank had for this one.
  at::Tensor exchanged(const at::Tensor& x_RTX) const;

  std::shared_ptr<ProcessGroup> group_;
  TransferMonitor watch_;
};

}  // namespace troupe
