// Saved activations in 8 or 4 bits (rule Q2), and back.
//
//   a group is 32 consecutive elements of the flattened tensor; the last one may be short
//   qmax  = 127 (8 bits) or 7 (4 bits)
//   scale = the smallest fp16 number with scale qmax >= max |x| of the group, so that none clips
//   q     = x / scale, rounded to the nearest integer, ties to even, clamped to [-qmax, qmax]
//   back:   x^ = q scale, rounded to the type; |x^ - x| <= scale / 2 before that rounding
//
//   8 bits: a signed byte an element. 4 bits: two's complement, even element in the low nibble; the
//   high nibble after an odd end is 0.
//   max |x| = 0: scale 0 and q 0. max |x| / qmax > 65504: scale 65504, the group's large elements
//   clip, and *saturated counts the group. A NaN or infinity: scale NaN and q 0, so that the whole
//   group reads back as NaN.
//
// x is any number of elements, rows one after the other. q / scale is exact as written, not a
// float's quotient: the same bytes on the CPU and on a GPU, for any number of threads, in every
// run. *saturated is added to, so that one counter may serve a whole step.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/core/number/f16.h"

namespace troupe {

inline constexpr int64_t kQuantGroup = 32;

// n elements take n or ceil(n / 2) bytes of values and ceil(n / 32) scales of 2: 8.5 or 4.5 bits
// each.
int64_t quantized_value_bytes(int64_t n, int bits);
int64_t quantized_scales(int64_t n);
int64_t quantized_bytes(int64_t n, int bits);

struct Quantize {
  MatRef x;                      // [1, N]  contiguous; f32, bf16 or f16
  uint8_t* values = nullptr;     // quantized_value_bytes(N, bits)  out
  F16* scales = nullptr;         // quantized_scales(N)             out
  int64_t* saturated = nullptr;  // [1]  added to
  int bits = 8;                  // 8 or 4
};

struct Dequantize {
  const uint8_t* values = nullptr;
  const F16* scales = nullptr;
  MutRef x;  // [1, N]  out
  int bits = 8;
};

void validate(const Quantize& args);  // throws on a broken contract; every path calls it
void validate(const Dequantize& args);
int64_t bytes_moved(const Quantize& args);  // the roofline's numerator
int64_t bytes_moved(const Dequantize& args);

void quantize_ref(const Quantize& args);                        // the rule in double: for tests
void quantize_cpu(const Quantize& args, const Pool& pool);      // what CPU runs use
void quantize_cuda(const Quantize& args, cudaStream_t stream);  // asynchronous

void dequantize_ref(const Dequantize& args);
void dequantize_cpu(const Dequantize& args, const Pool& pool);
void dequantize_cuda(const Dequantize& args, cudaStream_t stream);

}  // namespace troupe
