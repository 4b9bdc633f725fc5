// Rows in 8 bits, as they travel between ranks, and back: kernels/wire_rows has the rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace troupe {

// u8 [R, wire_row(D).bytes]: row r is x[index[r]]; without an index all rows in their order. x of
// any float type (f64 on the CPU), index int64 [R] of rows that x has.
at::Tensor pack_rows(const at::Tensor& x_TD, const std::optional<at::Tensor>& index_R = {});
// [R, width] of `type`. Nothing is recorded for autograd, here and above.
at::Tensor unpack_rows(const at::Tensor& packed_RB, int64_t width, at::ScalarType type);

}  // namespace troupe
