// Rows in 8 bits between ranks: what dispatchers send out under WireType::kInt8 and kFp8. Rows of x
// go so in forward and rows of grad_out in backward; what comes back (results, gradients of x) goes
// as it is, and gradients take the rounding for the identity.
//
// kernels/wire_rows has the rules and the bytes.
//   kInt8  a signed byte an element and a scale of 16 bits for each 32 of a row. With m the largest
//          |x| of its 32, |x^ - x| <= 1.0001 max(m / 127, 2^-126) / 2 before x^ is rounded to the
//          type: scales have the range of f32, so small gradients need no other.
//   kFp8   a byte of e4m3 an element and one scale for the row, a power of two: what the experts of
//          train.fp8 make of the row themselves (Q8-33). |x^ - x| <= |x| / 16 for |x| down to 2^-14
//          of the row's largest. x^ is exact in f32 and bf16, so those experts' outputs and their
//          gradients of rows and scores have the bits of rows that were not rounded on the way.
//          Their weight gradients may not: the other operand takes up the row's scale before it is
//          rounded, and that scale may be half of the first one, which moves its subnormals.
//
// Zeros stay zeros, and bytes of 0 are a row of zeros. A row with a NaN or an infinity comes back
// as NaN in every element, and no other row does. Rows are f32, bf16 or f16; f64 (on the CPU) has
// the range of f32. Any number of rows, also none.
//
// The same bytes on the CPU and on a GPU. Nothing waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "troupe/distributed/dispatch/dispatch_mode.h"

namespace troupe {

// Bytes of a row of D elements of `element_bytes` each, as it is sent out.
int64_t wire_row_bytes(WireType wire, int64_t D, int64_t element_bytes);

// u8 [N, wire_row_bytes(wire, D, ..)]: the rows of x that an int64 index names, or all. Here and
// below `wire` is a type of 8 bits.
at::Tensor packed_rows(WireType wire, const at::Tensor& x_TD,
                       const std::optional<at::Tensor>& index_N = {});
at::Tensor unpacked_rows(WireType wire, const at::Tensor& packed_NB, int64_t D,
                         at::ScalarType type);

}  // namespace troupe
