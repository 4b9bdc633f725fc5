// The CUDA path of ops/attention/attention: PyTorch's scaled_dot_product_attention, with its own
// gradients. It runs on the CPU too, where tests compare it. Segments of one length are one call,
// others a call each. A mask is made only where causality does not say which keys are seen: a
// window shorter than the segment, or several queries after a past. A sink is one more key, seen by
// all, whose value is 0 and whose product with a query of head h is sink_h.
#pragma once

#include "troupe/ops/attention/attention.h"

namespace troupe {

at::Tensor attention_sdpa(const at::Tensor& q_THd, const at::Tensor& k_PGd, const at::Tensor& v_PGe,
                          const AttentionForm& form);

}  // namespace troupe
