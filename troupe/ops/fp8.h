// A matrix in 8 bits (e4m3) with power-of-two scales, and back: kernels/fp8 has the rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace troupe {

// Which values share a scale: tiles of `rows` x `columns` (columns 0: whole rows), cut anew every
// `part_rows` rows, or at each expert's first row.
struct Fp8Tiles {
  int64_t rows = 1, columns = 0;
  int64_t part_rows = 0;
  std::optional<at::Tensor> expert_offset = {};  // int32 [E + 1]
};

struct Fp8Matrix {
  at::Tensor bytes;   // [R, C], float8_e4m3fn
  at::Tensor scales;  // f32, one for each tile
};

// x [R, C] f32, bf16 or f16. factor f32 [R]: row r is multiplied by factor[r] before it is rounded.
// largest f32, [R / part_rows] or [1]: the maximum that all scales of a part are made of, in place
// of each tile's own.
Fp8Matrix quantize_fp8(const at::Tensor& x_RC, const Fp8Tiles& tiles,
                       const std::optional<at::Tensor>& factor_R = std::nullopt,
                       const std::optional<at::Tensor>& largest = std::nullopt);

// Back; exact in f32 and bf16. Rows that no expert has are zeros.
at::Tensor dequantize_fp8(const Fp8Matrix& q, const Fp8Tiles& tiles, at::ScalarType dtype);

}  // namespace troupe
