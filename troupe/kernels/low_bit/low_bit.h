// Frozen weights in few bits (rule Q9), and back.
//
//   a group is G consecutive elements of a row; m = max |x| of the group; t = x / scale, a float's
//   quotient, and 0 where the scale is 0
//
//   format  bits   G   scale                        code: the nearest to t of             ties
//   nf4       4   64   m, f32                       16 quantiles of the normal one        down
//   int8      8  128   m / 127, f32                 the integers in [-127, 127]           to even
//   fp8       8  128   m / 448, f32                 the numbers of e4m3                   to even
//   mxfp4     4   32   2^(floor(log2 m) - 2), e8m0  0, .5, 1, 1.5, 2, 3, 4, 6 and signs   to even
//
//   back: x^ = value(code) scale, a float's product, rounded to the type
//
// nf4 is bitsandbytes' table with its midpoints, without double quantization: even element in the
// HIGH nibble. mxfp4 is OCP's MX as gpt-oss is published: even element in the low nibble, the
// sign in a code's bit 3, a scale is the byte s of 2^(s - 127); t above 6 becomes 6. int8 is a
// signed byte, fp8 a byte of e4m3.
//
//   |x^ - x| before the last rounding: nf4 0.152 m; int8 m / 254; fp8 |x| / 16, or m / 448 / 1024 where
//   that is more; mxfp4 m / 4
//
// A group of zeros reads back as zeros. A NaN or infinity is packed as 0, and *non_finite counts it: the
// caller refuses such weights. The same bytes on the CPU and on a GPU, for any number of threads, in
// every run. *non_finite is added to.
//
// Back, any bytes have a value: fp8's 0x7f and 0xff are NaN, int8's 0x80 is -128, mxfp4's scale
// 255 is 2^128.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

enum class LowBitFormat { kNf4, kInt8, kFp8, kMxfp4 };

int64_t low_bit_bits(LowBitFormat format);   // of a code
int64_t low_bit_group(LowBitFormat format);  // elements that share a scale along the last dimension
int64_t low_bit_scale_bytes(LowBitFormat format);  // of one scale
// Values and scales of whole groups together: 4.5, 8.25, 8.25 and 4.25 bits an element.
int64_t low_bit_bytes(LowBitFormat format, int64_t numel);

struct LowBitPack {
  MatRef x;                       // [1, N]  contiguous; f32, bf16 or f16; N is whole groups
  uint8_t* values = nullptr;      // [N bits / 8]  out
  float* scales = nullptr;        // [N / G]  out; null for mxfp4
  uint8_t* exponents = nullptr;   // [N / G]  out; for mxfp4 alone
  int64_t* non_finite = nullptr;  // [1]  added to
  LowBitFormat format = LowBitFormat::kNf4;
};

struct LowBitUnpack {
  const uint8_t* values = nullptr;
  const float* scales = nullptr;
  const uint8_t* exponents = nullptr;
  MutRef x;  // [1, N]  out
  LowBitFormat format = LowBitFormat::kNf4;
};

void validate(const LowBitPack& args);  // throws on a broken contract; every path calls it
void validate(const LowBitUnpack& args);
int64_t bytes_moved(const LowBitPack& args);  // the roofline's numerator
int64_t bytes_moved(const LowBitUnpack& args);

void low_bit_pack_ref(const LowBitPack& args);                    // the rule in double: for tests
void low_bit_pack_cpu(const LowBitPack& args, const Pool& pool);  // what CPU runs use
void low_bit_pack_cuda(const LowBitPack& args, cudaStream_t stream);  // asynchronous

void low_bit_unpack_ref(const LowBitUnpack& args);
void low_bit_unpack_cpu(const LowBitUnpack& args, const Pool& pool);
void low_bit_unpack_cuda(const LowBitUnpack& args, cudaStream_t stream);

}  // namespace troupe
