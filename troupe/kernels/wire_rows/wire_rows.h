// Rows in 8 bits an element, as they travel between ranks, and back, in one of two codes.
//
// WireCode::kInt8: integers, and a scale of 16 bits for each 32 of them.
//
//   a group is 32 neighbors of a row; its last may be short. m = max |x| of the group
//   s    = m f32(1 / 127) in f32, without what follows its nine leading bits; 2^-126 at least, and
//          0 where m = 0
//   q    = x f32(1 / s), rounded once, to the nearest integer, ties to even; 0 where s = 0
//   back:  x^ = q s, exact in f32, rounded to the type
//
//   packed row: the bytes of q [D], zeros up to an even place, the scales [ceil(D / 32)], zeros up
//   to a multiple of 4 bytes. A scale is a float's exponent and the eight bits after it: 16 bits
//   that need no sign, of the range of f32, so no row needs a scale of its own.
//
// Cutting s short cannot clip: m / s < 127 (1 + 2^-8) (1 + 2^-23) < 127.5, so |q| <= 127. With m
// the largest |x| of its 32, |x^ - x| <= 1.0001 max(m / 127, 2^-126) / 2 before the last rounding,
// and |x^| <= m (1 + 2^-23). Zeros stay zeros, and bytes of 0 are a row of zeros. In a row with a
// NaN or an infinity all scales are NaN (0xff80) and the q of their group 0: it comes back as NaN
// in every element, and no other row does. Any number of rows and any width, also none. Nothing
// past the packed rows or past D is written. The same bytes on the CPU and on a GPU: products and
// quotients are IEEE's, each rounded once.
//
// WireCode::kE4m3: floats of 8 bits and one scale for the row, by kernels/fp8's rule for whole rows
// (Q8-11, Q8-12; core/number/fp8_scale.h).
//
//   packed row: the bytes of e4m3 [D], zeros up to a multiple of 4, the scale as f32, zeros up to a
//   multiple of 16 bytes. A row of width 0 has none.
//
// What comes back is exact in f32, and in bf16 but below 2^-133; f16 rounds it, and has infinities
// where an |x| of 63488 or more became 65536. Rounding what came back again changes no value; the
// row's scale may be half of the first one, where the largest |x| was rounded to 224 scales. Bytes
// of 0 are a row of zeros. A row with a NaN or an infinity comes back as NaN in every element, and
// no other row does. The same bytes on the CPU and on a GPU.
//
// Rows of a multiple of 128 elements begin on 8 bytes (of 256: on 16), which is what a GPU's lane
// stores of eight elements; others on 4.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

enum class WireCode { kInt8, kE4m3 };

inline constexpr int64_t kWireGroup = 32;  // of kInt8

struct WireRow {
  int64_t groups, scales_at, bytes;  // groups: number of scales
};
WireRow wire_row(int64_t width, WireCode code = WireCode::kInt8);

struct PackRows {
  MatRef x;                        // [T, D]  f32, bf16 or f16; f64 on the CPU, rounded to f32 first
  const int64_t* index = nullptr;  // [R]     packed[r] is of x[index[r]], in [0, T), which
                                   // the CPU checks; null: R = T
  Mat<uint8_t> packed;             // [R, wire_row(D, code).bytes]  out, contiguous, on 4 bytes
  WireCode code = WireCode::kInt8;
};

struct UnpackRows {
  Mat<const uint8_t> packed;  // [R, wire_row(D, code).bytes]  contiguous, on 4 bytes
  MutRef out;                 // [R, D]  out, of any of those types
  WireCode code = WireCode::kInt8;
};

void validate(const PackRows& args);  // throws on a broken contract; every path calls it
void validate(const UnpackRows& args);
int64_t bytes_moved(const PackRows& args);  // the roofline's numerator
int64_t bytes_moved(const UnpackRows& args);

void pack_rows_ref(const PackRows& args);                        // the rule in double: for tests
void pack_rows_cpu(const PackRows& args, const Pool& pool);      // what CPU runs use
void pack_rows_cuda(const PackRows& args, cudaStream_t stream);  // asynchronous

void unpack_rows_ref(const UnpackRows& args);
void unpack_rows_cpu(const UnpackRows& args, const Pool& pool);
void unpack_rows_cuda(const UnpackRows& args, cudaStream_t stream);

}  // namespace troupe
