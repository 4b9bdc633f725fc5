// The path of ops/attention/attention on a Hopper GPU: cuDNN's kernels, and its repeatable
// backward, in slices (ops/attention/attention_slices). Two calls have the same bits, whatever the
// slices. Sequences of one length are one call; others, segments that see a past too, and sequences
// so long that they are cut into such, a call for each two powers of two that their queries and
// keys fit in, and nothing waits for the device. Gradients of keys that several segments see are each rounded, added
// in f32 and rounded once more. A sink costs a pass over the output: it scales what the softmax
// without it gave.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "troupe/ops/attention/attention.h"
#include "troupe/ops/attention/attention_slices.h"

namespace troupe {

struct AttentionHeads {
  at::ScalarType type;
  int64_t key_dim, value_dim;
  int64_t longest;         // segment, in queries
  int64_t keys = longest;  // that such a segment's queries see
};

// Why attention of such heads, without a past, is PyTorch's on this GPU; empty: it is cuDNN's.
// Where PyTorch only warns of what does not repeat (run.deterministic=false), all is PyTorch's.
std::string why_not_cudnn(const AttentionHeads& heads, const c10::Device& device);

// The same of a call.
bool fits_cudnn(const at::Tensor& q_THd, const at::Tensor& v_PGe, const AttentionForm& form);

// form.past == 0. limit: bytes of dS in flight in backward.
at::Tensor attention_cudnn(const at::Tensor& q_THd, const at::Tensor& k_PGd,
                           const at::Tensor& v_PGe, const AttentionForm& form,
                           int64_t limit = kAttentionBytes);

// For joined_attention(): one gradient for keys and values. Heads' dimensions in eights.
at::Tensor joined_attention_cudnn(const at::Tensor& q_THd, const at::Tensor& kv_PN,
                                  int64_t kv_heads, const AttentionForm& form);

}  // namespace troupe
