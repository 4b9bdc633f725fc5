// A matrix in 8 bits: e4m3 values and, for each group of them, one scale that is a power of two
// (rules Q8-11 to Q8-13).
//
//   m      = max |x| of the group, of the values as floats
//   scale  = the smallest power of two s with m <= 448 s, within [2^-126, 2^120]; m = 0: 1
//   byte   = x / s, rounded to e4m3 to nearest, ties to even
//   back   : x^ = byte s, exact in f32 and in bf16
//
// A NaN or infinity in a group: its scale is NaN and every byte 0x7f, so the whole group reads back
// as NaN. No division and no logarithm: the same bytes on the CPU and on a GPU, for any number of
// threads, in every run. Scaling x by 2^j scales every x^ by 2^j (where no scale is at its limit).
//
// Groups are tiles of `rows` x `columns`. Columns are cut from the first one on. Rows are cut from
// the first row of each part: all rows are one part; or parts have `part_rows` rows each (the
// matrices of a stack [E, N, C] seen as [E N, C]); or they are experts' rows, part e being
// offset[e] <= r < offset[e + 1] (then rows at or past offset[E] are neither read nor written). The
// last tile of a part, and the last of the columns, may be short.
//
// `factor` multiplies row r by factor[r] before it is rounded: a weight gradient's operand takes
// the scale of the other operand's row this way. Factors are powers of two.
//
// `largest` is m of all groups of a part in place of each group's own (one m of all experts' rows):
// a tensor with one scale. What is larger than 448 s becomes 448 s.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

inline constexpr int64_t kWholeRow = 0;

// The groups of a matrix; the tiles that kernels are built for are 1 x (kWholeRow or 128), 128 x
// 128.
struct Fp8Groups {
  int64_t rows = 1;
  int64_t columns = kWholeRow;
  int64_t part_rows = 0;            // 0: one part
  const int32_t* offset = nullptr;  // [experts + 1], instead of part_rows
  int64_t experts = 0;
};

// How many rows and columns the matrix of scales has for x of R rows and C columns. With offsets,
// part e's first row of scales is offset[e] / rows + e, and rows of scales that no group has are
// not written.
int64_t scale_rows(const Fp8Groups& groups, int64_t R);
int64_t scale_columns(const Fp8Groups& groups, int64_t C);

struct QuantizeFp8 {
  MatRef x;                        // [R, C]  f32, bf16 or f16
  const float* factor = nullptr;   // [R], or null: 1
  const float* largest = nullptr;  // [parts; 1 with offset], or null: each group's own
  Fp8Groups groups;
  Mat<uint8_t> bytes;  // [R, C]  out
  Mat<float> scales;   // [scale_rows, scale_columns]  out
};

struct DequantizeFp8 {
  Mat<const uint8_t> bytes;  // [R, C]
  Mat<const float> scales;   // [scale_rows, scale_columns]
  Fp8Groups groups;
  MutRef x;  // [R, C]  out
};

void validate(const QuantizeFp8& args);  // throws on a broken contract; every path calls it
void validate(const DequantizeFp8& args);
int64_t bytes_moved(const QuantizeFp8& args);  // the roofline's numerator
int64_t bytes_moved(const DequantizeFp8& args);

void quantize_fp8_ref(const QuantizeFp8& args);                        // the rule: for tests
void quantize_fp8_cpu(const QuantizeFp8& args, const Pool& pool);      // what CPU runs use
void quantize_fp8_cuda(const QuantizeFp8& args, cudaStream_t stream);  // asynchronous

void dequantize_fp8_ref(const DequantizeFp8& args);
void dequantize_fp8_cpu(const DequantizeFp8& args, const Pool& pool);
void dequantize_fp8_cuda(const DequantizeFp8& args, cudaStream_t stream);

}  // namespace troupe
