// The path of ops/attention/attention_part on a Hopper GPU: cuDNN's kernels, whose backward takes
// the joined output and sums in place of a part's own (ops/attention/attention_cudnn). Inputs,
// outputs and gradients are of q's type, each rounded once, and widened to the parts'.
#pragma once

#include "troupe/ops/attention/attention_part.h"

namespace troupe {

// In each segment every query sees its own key last, or all of the segment's.
bool part_fits_cudnn(const PartInputs& in, const PartForm& form);

// to: no_keys().
void part_by_cudnn(const PartInputs& in, const PartForm& form, AttentionPart& to);
PartGradients part_backward_by_cudnn(const PartInputs& in, const PartForm& form,
                                     const AttentionPart& whole, const at::Tensor& grad_THe);

}  // namespace troupe
