// Causal attention, over segments of a flat row of tokens:
//
//   s_ij = scale q_i . k_j      for the keys j that query i sees
//   o_i  = sum_j exp(s_ij) v_j / (sum_j exp(s_ij) + exp(sink_h))       without sinks: no last term
//
// A segment is a sequence or a document of it; its queries see its own keys alone. Query i sees key
// j where j <= i, and, with a window, i - window < j. Query head h reads key head h G / H.
// On the CPU products are BLAS over blocks of 64 queries and take f32 or f64 (bf16 and f16 are
// widened); on a Hopper GPU bf16 and f16 are cuDNN's, and all is bit for bit the same twice (rule
// G4). What it does not take (ops/attention/attention_cudnn: f32 and f64, a past, other GPUs) is
// PyTorch's, whose backward is repeatable where its deterministic algorithms are an order and not a
// warning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "troupe/ops/attention/attention_segment.h"
#include "troupe/ops/norm.h"
#include "troupe/ops/rotary.h"

namespace troupe {

struct AttentionForm {
  double scale = 1;
  int64_t window = 0;                      // 0: none
  std::vector<int64_t> lengths = {};       // queries of each segment; their sum is T
  int64_t past = 0;                        // keys of each segment before those of its queries
  std::optional<at::Tensor> sinks_H = {};  // of q's type
  // In place of lengths and past: segments whose queries are q's rows, in order, and whose keys are
  // any of k's rows, of which segments may share some.
  std::vector<AttentionSegment> segments = {};
};

// q [T, H, d], k [P, G, d], v [P, G, e], rows of any stride; P = T + past times the segments.
// With segments, P is whatever they need. Returns [T, H, e]. Gradients for q, k, v and the
// sinks.
at::Tensor attention(const at::Tensor& q_THd, const at::Tensor& k_PGd, const at::Tensor& v_PGe,
                     const AttentionForm& form);

// The same of keys and values side by side, kv [P, G (d + e)]: the keys of all heads, then the
// values. On the CPU backward keeps kv itself, which may then be a tensor that is made again.
at::Tensor joined_attention(const at::Tensor& q_THd, const at::Tensor& kv_PN, int64_t kv_heads,
                            const AttentionForm& form);

// Which heads a joint product holds: [T, (H + 2 G) d], queries, keys, values.
struct PackedHeads {
  int64_t heads, kv_heads, dim;
};
struct PackedRotary {
  RotaryTables tables;
  std::optional<at::Tensor> position_T = {};  // int64; none: a token's place in its segment, all of
                                              // which are then of one length
  RotaryOptions options;
};

// What stands between the product and the rotation: a norm without bias of the whole of a token's
// queries, and of its keys, or with weights [dim] of each head alone.
struct PackedNorm {
  at::Tensor q_weight, k_weight;
  NormOptions options;
};
struct PackedForm {
  PackedHeads heads;
  std::optional<PackedNorm> norm = {};
  std::optional<PackedRotary> rotary = {};
};

// The same of a joint product, whose queries and keys are normed and turned first. On the CPU only
// the product is kept, and its queries and keys are made again in backward; without a norm they are
// turned where they are: qkv is OVERWRITTEN then. So it must be nobody else's: neither read later
// nor kept by the graph that made it. On the CPU its gradient is made in one piece.
at::Tensor packed_attention(const at::Tensor& qkv_TN, const PackedForm& packed,
                            const AttentionForm& form);

}  // namespace troupe
