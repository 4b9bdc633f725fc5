// Frozen weights in few bits, and products with them (QLoRA): kernels/low_bit has the formats (rule
// Q9).
//
//   low_bit_linear         y = x W^T
//   low_bit_grouped_gemm   y[r] = W_e x[r]   for each row r of segment e, as ops/grouped_gemm.h
//
// W is unpacked to x's type just for the product, in forward and again in backward, which keeps W's
// values and scales and neither W nor x. The gradient is x's alone: dx = dy W.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "troupe/core/text/text.h"
#include "troupe/kernels/low_bit/low_bit.h"

namespace troupe {

constexpr auto names_of(LowBitFormat) {
  return std::array{Named{"nf4", LowBitFormat::kNf4}, Named{"int8", LowBitFormat::kInt8},
                    Named{"fp8", LowBitFormat::kFp8}, Named{"mxfp4", LowBitFormat::kMxfp4}};
}

struct LowBit {
  at::Tensor values;  // u8 [.., K bits / 8]
  at::Tensor scales;  // [.., K / low_bit_group(format)], f32, or u8 of mxfp4
};

// x [.., K] f32, bf16 or f16; K is whole groups. Elements that are not finite are refused with their
// number: on a GPU this waits for it.
LowBit low_bit_pack(const at::Tensor& x, LowBitFormat format);

// [.., K] of a float type.
at::Tensor low_bit_unpack(const LowBit& w, LowBitFormat format, at::ScalarType dtype);

// x [R, K], w of [E, N, K], expert_offset int32 [E + 1]; y [R, N]. Rows past expert_offset[E] give zeros.
at::Tensor low_bit_grouped_gemm(const at::Tensor& x_RK, const LowBit& w, LowBitFormat format,
                                const at::Tensor& expert_offset);

// x [.., K], w of [N, K]; y [.., N].
at::Tensor low_bit_linear(const at::Tensor& x, const LowBit& w, LowBitFormat format);

}  // namespace troupe
