// Saved activations in 8 or 4 bits (rule Q2): kernels/quantize.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

struct Quantized {
  at::Tensor values;  // u8
  at::Tensor scales;  // f16, one for each group of 32
};

// x f32, bf16 or f16, of any sizes. saturated int64 [1]: counts the groups that fp16 scales cannot
// hold.
Quantized quantize(const at::Tensor& x, int64_t bits, const at::Tensor& saturated);

// Back, in the sizes and the type that it had.
at::Tensor dequantize(const Quantized& q, int64_t bits, c10::SymIntArrayRef sizes,
                      at::ScalarType dtype);

}  // namespace troupe
