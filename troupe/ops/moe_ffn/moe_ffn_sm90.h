// The Hopper path of ops/moe_ffn/moe_ffn: bf16 SwiGLU experts on a GPU of compute capability 9.0.
#pragma once

#include "troupe/ops/moe_ffn/moe_ffn_paths.h"

namespace troupe {

// Does this call have the form that the Hopper kernels were built for? A function of the widths,
// the types and the device alone, so forward and backward of a call take the same path: H's columns
// lie in an order of that path's own (kernels/moe_sm90).
bool fits_sm90(const FfnCall& call);

FfnForward ffn_forward_sm90(const FfnCall& call, bool hidden_only);
FfnGradTensors ffn_backward_sm90(const FfnCall& call, const at::Tensor& grad_out,
                                 const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite);

}  // namespace troupe
