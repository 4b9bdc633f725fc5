// The path of ops/attention/attention on a Hopper GPU: cuDNN's kernels, and its repeatable
// backward, in slices (ops/attention/attention_slices). Two calls have the same bits, whatever the
// slices. Segments of one length are one call; others a call for each power of two that their
// lengths fit in, and nothing waits for the device. A sink costs a pass over the output: it scales
// what the softmax without it gave.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "troupe/ops/attention/attention.h"
#include "troupe/ops/attention/attention_slices.h"

namespace troupe {

struct AttentionHeads {
  at::ScalarType type;
  int64_t key_dim, value_dim;
  int64_t longest;  // segment, in tokens
};

// Why attention of such heads, without a past, is PyTorch's on this GPU; empty: it is cuDNN's.
// Where PyTorch only warns of what does not repeat (run.deterministic=false), all is PyTorch's.
std::string why_not_cudnn(const AttentionHeads& heads, const c10::Device& device);

// The same of a call.
bool fits_cudnn(const at::Tensor& q_THd, const at::Tensor& v_PGe, const AttentionForm& form);

// form.past == 0. limit: bytes of dS in flight in backward.
at::Tensor attention_cudnn(const at::Tensor& q_THd, const at::Tensor& k_TGd,
                           const at::Tensor& v_TGe, const AttentionForm& form,
                           int64_t limit = kAttentionBytes);

}  // namespace troupe
