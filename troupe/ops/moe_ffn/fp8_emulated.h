// Operands of 8-bit products read back in the type of the products: what moe_ffn_fp8 and linear_fp8
// multiply where no tensor core multiplies the bytes.
#pragma once

#include "troupe/kernels/fp8_tiles/fp8_tiles.h"  // kFp8Tile
#include "troupe/ops/fp8.h"
#include "troupe/ops/moe_ffn/fp8_weights.h"

namespace troupe {

// x rounded with a scale for each 1 x 128; `largest`: with that of this maximum.
at::Tensor tile_emulated(const at::Tensor& x_RC,
                         const std::optional<at::Tensor>& largest = std::nullopt);
// x times the rows' factor, rounded with a scale for 128 rows of an expert and 128 columns, or with
// that of `largest`, a maximum of x without the factor.
at::Tensor block_emulated(const at::Tensor& x_RC, const at::Tensor& factor_R,
                          const at::Tensor& expert_offset,
                          const std::optional<at::Tensor>& largest = std::nullopt);
// Weights [E, N, K], their blocks cut anew every `part_rows` of the N rows.
at::Tensor weight_emulated(const Fp8Options& fp8, Fp8Weights::Which which, const at::Tensor& w_ENK,
                           int64_t part_rows);

}  // namespace troupe
