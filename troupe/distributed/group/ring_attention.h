// Ring attention: keys and values stay with the rank of their token, and go to the others' queries
// one rank's at a time (distributed/mesh/ring_plan.h). A rank never has more than two other ranks'
// at once: those that it attends to, and the next ones, which travel meanwhile.
//
//   ring_attention(q [T, H, d], kv [T, G (d + e)])   all of own tokens, keys of all heads before
//   the values; returns [T, H, e]
//
// What queries see in each round is joined exactly (ops/attention/attention_part.h), in the order
// of the rounds, in f32 (f64 for f64), and rounded once. Backward sends the keys again, and the
// gradients of others' rows home in kv's type, where they are added in the order of the rounds in
// f32 and rounded once. So two runs have the same bits.
//
// All ranks make the same calls, also with no tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/transfer_monitor.h"
#include "troupe/distributed/mesh/ring_plan.h"
#include "troupe/ops/attention/attention.h"
#include "troupe/ops/attention/attention_part.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

// A ring_plan() with its lists of rows on the device.
struct RingRows {
  std::vector<RingRound> rounds = {};
  std::vector<at::Tensor> sent = {};  // int64, of each round
};
RingRows ring_rows(std::vector<RingRound> rounds, const c10::Device& device);

class RingAttention {
 public:
  // Its transfers are Phase::kKeys to whom `watch` tells of them.
  explicit RingAttention(std::shared_ptr<ProcessGroup> group, TransferMonitor watch = {})
      : group_(std::move(group)), watch_(std::move(watch)) {}

  int64_t ranks() const { return group_->size(); }

  // form: scale, window and sinks; the plan has its segments.
  at::Tensor attention(const at::Tensor& q_THd, const at::Tensor& kv_TN, int64_t kv_heads,
                       const AttentionForm& form,
                       const std::shared_ptr<const RingRows>& rows) const;

 private:
  struct Call;
  struct Coming;
  // Keys and values of a round on their way here, and own ones to whom they go.
  Coming begin(const Call& call, size_t round) const;
  // The gradients of a round's rows on their way home, and those of own rows here.
  Coming begin_home(const Call& call, size_t round, const at::Tensor& grad_PN) const;
  at::Tensor arrived(Coming& coming) const;
  AttentionPart forward(const Call& call) const;
  TensorList backward(const Call& call, const AttentionPart& whole, const at::Tensor& grad) const;

  std::shared_ptr<ProcessGroup> group_;
  TransferMonitor watch_;
};

}  // namespace troupe
