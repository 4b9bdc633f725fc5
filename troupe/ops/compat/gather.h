// MegaBlocks' gather and scatter operators, plain, padded and binned (rule P4): a plan from their
// metadata (kernels/binned_plan), then permute or combine over it.
//
//   indices  int32 [T K]   slots t K + k sorted by expert (ops/compat/radix_sort)
//   bins     int32 [E]     inclusive sums of the experts' counts; padded_bins: of the padded counts
//   gather   out[row of sorted slot i] = x[indices[i] / K]                     zeros elsewhere
//   scatter  out[t] = sum over k of weights[t K + k] x[row of slot t K + k]    in slot order, f32
// Rows: plain i; padded as padded_bins say; binned [E, C, D], expert e's first C slots in x[e].
// MegaBlocks' bin_ids follow from bins and are not asked for. All are differentiable in x and
// weights: gradients are the opposite operator, and a row product in f32 for the weights.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

at::Tensor gather(const at::Tensor& x_TD, const at::Tensor& indices, const at::Tensor& bins,
                  int64_t K);
at::Tensor scatter(const at::Tensor& x_RD, const at::Tensor& indices, const at::Tensor& weights,
                   const at::Tensor& bins, int64_t K);

// `rows`: those of the result, at least padded_bins' last. -1: exactly that, for which the host
// waits.
at::Tensor padded_gather(const at::Tensor& x_TD, const at::Tensor& indices, const at::Tensor& bins,
                         const at::Tensor& padded_bins, int64_t K, c10::SymInt rows = -1);
at::Tensor padded_scatter(const at::Tensor& x_RD, const at::Tensor& indices,
                          const at::Tensor& weights, const at::Tensor& bins,
                          const at::Tensor& padded_bins, int64_t K);

at::Tensor binned_gather(const at::Tensor& x_TD, const at::Tensor& indices, const at::Tensor& bins,
                         c10::SymInt capacity, int64_t K);
at::Tensor binned_scatter(const at::Tensor& x_ECD, const at::Tensor& indices,
                          const at::Tensor& weights, const at::Tensor& bins, int64_t K);

}  // namespace troupe
