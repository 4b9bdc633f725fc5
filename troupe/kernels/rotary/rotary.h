// Rotary position embedding: turns pairs of a head's dimensions by an angle that grows with the
// token's position.
//
//   for the pair j < n / 2 of each head, (a, b) = (x[i1], x[i2]), c = cos[p, j], s = sin[p, j]:
//     y[i1] = a c - b s
//     y[i2] = b c + a s          inverse: the same with -s, which undoes it and is its gradient
//   half-rotated:  i1 = first + j,      i2 = first + j + n / 2     (Llama)
//   interleaved:   i1 = first + 2 j,    i2 = first + 2 j + 1       (DeepSeek)
//   the other dimensions of a head are copied
//
// Shapes: T tokens, H heads of D dimensions, of which n, from `first` on, are turned; tables [P, n
// / 2]. p = position[t], or t mod P without positions: P is then the sequence length. A position
// outside [0, P) gives NaN. Arithmetic is float (double for f64), rounded once. y may be x. No
// sums: the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

enum class RotaryForm : uint8_t { kHalf, kInterleaved };

struct Rotary {
  MatRef x;                           // [T, H D]  rows may be a part of longer ones
  MutRef y;                           // [T, H D]  out
  MatRef cos;                         // [P, n / 2]  float (double for f64)
  MatRef sin;                         // [P, n / 2]
  int64_t head_dim;                   // D
  const int64_t* position = nullptr;  // [T] or none
  int64_t first = 0;
  RotaryForm form = RotaryForm::kHalf;
  bool inverse = false;
};

void validate(const Rotary& args);        // throws on a broken contract; every path calls it
int64_t bytes_moved(const Rotary& args);  // the roofline's numerator

void rotary_ref(const Rotary& args);                        // the formula in double: for tests
void rotary_cpu(const Rotary& args, const Pool& pool);      // what CPU runs use
void rotary_cuda(const Rotary& args, cudaStream_t stream);  // asynchronous, allocates nothing

}  // namespace troupe
