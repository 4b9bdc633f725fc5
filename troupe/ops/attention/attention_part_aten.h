// The path of ops/attention/attention_part on GPUs: ATen's products over blocks of 512 queries and
// all their keys, in the parts' type. It runs on the CPU too, where tests compare it.
#pragma once

#include "troupe/ops/attention/attention_part.h"

namespace troupe {

// `in`: of the parts' type. `to`: as no_keys() gives it; rows of queries with keys are overwritten.
void part_by_aten(const PartInputs& in, const PartForm& form, AttentionPart& to);

// `to`: zeros. grad_THe as attention_part_backward() takes it.
void part_backward_by_aten(const PartInputs& in, const PartForm& form, const AttentionPart& whole,
                           const at::Tensor& grad_THe, PartGradients& to);

}  // namespace troupe
