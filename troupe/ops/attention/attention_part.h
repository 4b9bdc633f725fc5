// Attention of queries over some of their keys at a time, exactly: parts are joined by the
// logarithms of their sums (ring attention, FlashAttention's online softmax).
//
//   part      lse_i = log sum_j exp(s_ij),  out_i = sum_j exp(s_ij - lse_i) v_j   over its keys j
//   join      lse = log(exp(lse) + exp(lse'))
//             out = exp(lse_before - lse) out + exp(lse' - lse) out'
//
// A query without a key in a part has lse -inf and out 0, which change nothing. A sink is a part
// whose value is 0: begin with it. Parts are f32 (f64 for f64) whatever the type of q, and the
// joined output is rounded once, by the caller: in bf16 each join would round.
//
// Backward needs no part's own softmax: with the joined lse and out the gradients of a part are
//   P_ij = exp(s_ij - lse_i),    dS_ij = scale P_ij (do_i . v_j - do_i . out_i)
//   dv_j = sum_i P_ij do_i,      dq_i = sum_j dS_ij k_j,      dk_j = sum_i dS_ij q_i
//
// On the CPU products are those of ops/attention/attention_cpu; on a Hopper GPU cuDNN's where q is
// narrow and no window cuts through a part (ops/attention/attention_part_cudnn); elsewhere ATen's,
// over blocks of queries, in the type of the parts. No graph is recorded. The same bits twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "troupe/ops/attention/attention_segment.h"

namespace troupe {

struct AttentionPart {
  at::Tensor out_THe, lse_HT;
};

struct PartForm {
  double scale = 1;
  int64_t window = 0;  // 0: none
  // Ascending in queries and in keys; a query is in one at most.
  std::vector<AttentionSegment> segments = {};
};

// q [T, H, d], k [P, G, d], v [P, G, e], of one type; heads of a token side by side.
struct PartInputs {
  at::Tensor q_THd, k_PGd, v_PGe;
};

// Without a key: out 0; lse -inf, or the sink's of each head.
AttentionPart no_keys(const at::Tensor& q_THd, int64_t value_dim,
                      const std::optional<at::Tensor>& sinks_H);

AttentionPart attention_part(const PartInputs& in, const PartForm& form);

void join(AttentionPart& sum, const AttentionPart& part);

// Gradients, in the parts' type: zero for queries and keys of no segment.
struct PartGradients {
  at::Tensor q_THd, k_PGd, v_PGe;
};
// `whole`: all parts, joined. grad_out [T, H, e], of the parts' type.
PartGradients attention_part_backward(const PartInputs& in, const PartForm& form,
                                      const AttentionPart& whole, const at::Tensor& grad_THe);

// d loss / d sink_h = - sum_i exp(sink_h - lse_hi) do_i . out_i
at::Tensor sinks_backward(const AttentionPart& whole, const at::Tensor& grad_THe,
                          const at::Tensor& sinks_H);

}  // namespace troupe
