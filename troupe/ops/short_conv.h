// The short causal convolution before a linear attention, each channel for itself, and SiLU behind
// it. Of token t of a document, x before the document being 0, or what is given as `before`:
//
//   u_tc = sum_{j < K} w_{c, K-1-j} x_{t-j, c};   y = u sigmoid(u)
//
// Computed in f32 (f64 for f64) by ATen operators, on the CPU and on GPUs. Backward keeps x alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe {

struct ShortConvOptions {
  std::vector<int64_t> lengths;  // of the documents, one behind the other; their sum is T
  at::Tensor before = {};        // [documents, K-1, C] of x's type; undefined: zeros. No gradient
};

struct ShortConvResult {
  at::Tensor y_TC;  // of x's type
  at::Tensor last;  // [documents, K-1, C]: the last inputs, those before the document among them
};

// x [T, C], w [C, K]; gradients of both.
ShortConvResult short_conv(const at::Tensor& x_TC, const at::Tensor& w_CK,
                           const ShortConvOptions& options);

}  // namespace troupe
