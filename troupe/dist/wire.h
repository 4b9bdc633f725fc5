// Rows in 8 bits between ranks: what dispatchers send out under WireType::kInt8. Rows of x go so in
// forward and rows of grad_out in backward; what comes back (results, gradients of x) goes as it
// is, and gradients take the rounding for the identity.
//
//   s      = the power of two with s <= max |x| < 2 s of the row, 2^-126 at least; infinity where
//   an
//            element is NaN or infinite
//   q, h   = x / s in signed bytes, with an fp16 scale for each 32 of the row (kernels/quantize;
//   the
//            last group ends with the row)
//   packed = the bytes of q [D], of h [ceil(D / 32)] and of s (f32), in this order
//   back:    x^ = q h s, rounded once to the type
//
// With m the largest |x| of its 32, |x^ - x| <= (1.001 m / 127 + 2^-24 s) / 2 before that rounding.
// s is there because fp16 alone holds no scale of small gradients: below it would be 0 under 2^-25.
// Zeros stay zeros. A row with a NaN or an infinity comes back as NaN in every element, and no
// other row does. Rows are f32, bf16 or f16; f64 has the range of f32. Any number of rows, also
// none.
//
// The same bytes on the CPU and on a GPU. Nothing waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/dist/dispatch_mode.h"

namespace troupe {

// Bytes of a row of D elements of `element_bytes` each, as it is sent out.
int64_t wire_row_bytes(WireType wire, int64_t D, int64_t element_bytes);

at::Tensor packed_rows(const at::Tensor& rows_ND);  // u8 [N, wire_row_bytes(kInt8, D, ..)]
at::Tensor unpacked_rows(const at::Tensor& packed_NB, int64_t D, at::ScalarType type);

}  // namespace troupe
