// AdamW over one run of elements: moments, decoupled weight decay, clipping, the rounded copy of
// the parameters that a model computes with; all in one pass.
//
//   g     = grad[i] grad_scale
//   m[i]  = beta1 m[i] + (1 - beta1) g
//   v[i]  = beta2 v[i] + (1 - beta2) g^2
//   p[i]  = p[i] - lr (m[i] / (1 - beta1^step) / (sqrt(v[i] / (1 - beta2^step)) + eps)
//                      + weight_decay p[i])
//   copy[i] = p[i], rounded
//
// The parameters are f32 numbers with or without a copy; or, where `remainder` is given, in halves:
// p[i] is copy[i] and remainder[i] joined (core/number/split_f32.h), and comes back split. That is
// 8 bytes an element read and written instead of 10, and two less kept; p has the same bits either
// way, and the copy's ties go away from zero instead of to even.
//
// Moments may be kept in 8 bits, with a scale for each 256 elements from the first on
// (core/number/moment8.h): m8 and v8 in place of m and v. The step uses them before they are
// stored, which is with a dither that comes of their own bits.
//
// step counts from 1. grad_scale is read on the device, so that clipping needs no word with the
// host; none: 1. Where it is not finite nothing at all is written: a gradient of NaN never reaches
// a weight (clip_scale of grad_norm.h gives NaN then). N elements each. Arithmetic is float (double
// where p is f64); m and v may be kept in bf16, p and the step itself still use them before they
// are rounded. Each element stands alone: the same bits for any number of threads. Nothing may
// overlap.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

// What a step multiplies with, formed once in double.
template <class W>
struct AdamWStep {
  W lr, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, weight_decay;
};

struct MomentCodes {
  Mat<uint8_t> codes;  // [1, N]
  Mat<float> scales;   // [1, ceil(N / 256)]
};

struct AdamW {
  MutRef param;  // [1, N]  f32; f64 on the CPU, then all are; none beside `remainder`
  MatRef grad;   // [1, N]  f32, bf16 or f16
  MutRef m;      // [1, N]  f32 or bf16, in and out; none beside m8
  MutRef v;      // [1, N]  of m's type; none beside v8
  int64_t step;  // > 0
  double lr;
  MutRef copy = {};              // [1, N]  out, bf16 or f16, or none; in halves bf16, in and out
  Mat<uint16_t> remainder = {};  // [1, N]  in and out, or none
  MomentCodes m8 = {}, v8 = {};  // in and out, or none
  const float* grad_scale = nullptr;  // [1] or none
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  // adamw_step() of the numbers above, which are not read then: where the paths run, so that a launch
  // in a CUDA graph takes each replay's. Not for p in f64, nor of the reference.
  const AdamWStep<float>* constants = nullptr;
};

void validate(const AdamW& args);        // throws on a broken contract; every path calls it
int64_t bytes_moved(const AdamW& args);  // the roofline's numerator
inline bool in_halves(const AdamW& a) {
  return a.remainder.rows > 0;
}
inline bool in_codes(const AdamW& a) {  // the moments
  return a.m8.codes.rows > 0;
}

void adamw_ref(const AdamW& args);                        // the formula in double: for tests
void adamw_cpu(const AdamW& args, const Pool& pool);      // what CPU runs use
void adamw_cuda(const AdamW& args, cudaStream_t stream);  // asynchronous, allocates nothing

AdamWStep<double> adamw_step(const AdamW& args);
template <class W, class Given>
AdamWStep<W> rounded(const AdamWStep<Given>& s) {
  const auto w = [](Given x) { return static_cast<W>(x); };
  return {w(s.lr),      w(s.beta1),   w(s.rest1), w(s.beta2),       w(s.rest2),
          w(s.unbias1), w(s.unbias2), w(s.eps),   w(s.weight_decay)};
}

}  // namespace troupe
