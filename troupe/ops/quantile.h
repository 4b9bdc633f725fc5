// Quantile balancing's statistic of one microbatch (R11): kernels/quantile has the formulas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace troupe {

// Where each expert's threshold should be: f32 [E]. logits [T, E] of all tokens that share the
// microbatch, beta f32 [E], valid bool [T] or absent; k < E. Without a gradient.
at::Tensor quantile(const at::Tensor& logits_TE, const at::Tensor& beta_E,
                    const std::optional<at::Tensor>& valid_T, int64_t k);

}  // namespace troupe
