// Rows in 8 bits, as they travel between ranks, and back: kernels/wire_rows has the rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

#include "troupe/core/text/text.h"
#include "troupe/kernels/wire_rows/wire_rows.h"

namespace troupe {

constexpr auto names_of(WireCode) {
  return std::array{Named{"int8", WireCode::kInt8}, Named{"e4m3", WireCode::kE4m3}};
}

// u8 [R, wire_row(D, code).bytes]: row r is x[index[r]]; without an index all rows in their order.
// x of any float type (f64 on the CPU), index int64 [R] of rows that x has.
at::Tensor pack_rows(const at::Tensor& x_TD, const std::optional<at::Tensor>& index_R = {},
                     WireCode code = WireCode::kInt8);
// [R, width] of `type`. Nothing is recorded for autograd, here and above.
at::Tensor unpack_rows(const at::Tensor& packed_RB, int64_t width, at::ScalarType type,
                       WireCode code = WireCode::kInt8);

}  // namespace troupe
