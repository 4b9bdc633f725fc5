// Operands of 8-bit products (the rule of kernels/fp8) in the two orders in which tensor cores read
// them: along rows, and transposed. A pass over memory makes both.
//
// Weights, a stack of matrices [E][N, K], one scale for each 128 x 128:
//   rows[e, n, k]        = byte(w[e, n, k])
//   transposed[e, k, n]  = rows[e, n, k]             a block transposes with its scale
//   scales[e, n / 128, k / 128]
//
// Rows packed by expert (routing_plan.h), [R, C], for a product over rows and for a weight
// gradient:
//   rows[r, c]           = byte(x[r, c]), a scale for each 1 x 128: row_scales[c / 128, r]
//   columns[c, P_e + p]  = byte(f_r x[r, c]),
//                          r = offset[e] + 128 (p / 128) + fragment_order(p % 128),
//                          a scale for each 128 rows of expert e and 128 columns
//   block_scales[P_e / 128 + p / 128, c / 128]
// with P_e = 128 (offset[e] / 128 + e), f_r = factor[row_src[r]] (1 where `factor` is null or
// row_src is -1), a power of two. Past an expert's last row, up to a multiple of 128, bytes of
// `columns` are 0; blocks that no expert has are not written. Each of the two outputs may be left
// out (null).
//
// `largest`, `row_largest` and `block_largest` (with the factor) are the maximum that a scale is made
// of in place of each tile's own (kernels/fp8): a tensor with one scale.
//
// bf16 in; N, K and C are multiples of 128. The bytes and scales are those of quantize_fp8. The CPU
// computes with quantize_fp8 and needs neither order: the reference alone is here, and CUDA.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/view.h"
#include "troupe/core/host_device.h"

namespace troupe {

constexpr int64_t kFp8Tile = 128;

// Which row of 16 is at place p of 16: rows r and r + 8 side by side. A lane of an accumulator has
// both, so that a transposing store of 8 x 8 16-bit matrices (stmatrix) writes this order; and a
// transposing load (ldmatrix) brings the other operand's rows into registers in it. A permutation
// within 16.
TROUPE_INLINE constexpr int64_t fragment_order(int64_t p) {
  const int64_t in16 = p % 16;
  return p - in16 + in16 / 2 + in16 % 2 * 8;
}

// Rows of `block_scales`, a 128th of the columns of `columns`.
constexpr int64_t fp8_row_blocks(int64_t rows, int64_t experts) {
  return rows / kFp8Tile + experts;
}

struct Fp8WeightTiles {
  MatRef w;                        // [E N, K]  bf16
  int64_t matrix_rows;             // N
  Mat<uint8_t> rows;               // [E N, K]  out, or null
  uint8_t* transposed;             // [E, K, N] out, or null
  float* scales;                   // [E, N / 128, K / 128]  out
  const float* largest = nullptr;  // [E], or null
};

struct Fp8RowTiles {
  MatRef x;                      // [R, C]  bf16
  const int32_t* expert_offset;  // [E + 1]
  int64_t experts;
  const int32_t* row_src = nullptr;      // [R]; with `factor`
  const float* factor = nullptr;         // [S], or null
  Mat<uint8_t> rows = {};                // [R, C]        out, or null
  float* row_scales = nullptr;           // [C / 128, R]  out
  uint8_t* columns = nullptr;            // [C, 128 fp8_row_blocks]  out, or null
  float* block_scales = nullptr;         // [fp8_row_blocks, C / 128]  out
  const float* row_largest = nullptr;    // [1], or null
  const float* block_largest = nullptr;  // [1], or null
};

void validate(const Fp8WeightTiles& args);
void validate(const Fp8RowTiles& args);

void fp8_weight_tiles_ref(const Fp8WeightTiles& args);
void fp8_row_tiles_ref(const Fp8RowTiles& args);
void fp8_weight_tiles_cuda(const Fp8WeightTiles& args, cudaStream_t stream);
void fp8_row_tiles_cuda(const Fp8RowTiles& args, cudaStream_t stream);

}  // namespace troupe
