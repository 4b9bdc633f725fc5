// The norm of all gradients, piece by piece, and the factor that clips it.
//
//   sum_squares:  out <- [out +] sum_i x[i]^2              in double, of any type
//   clip_scale:   norm  = sqrt(sum of squares)
//                 scale = min(1, max_norm / (norm + 1e-6)); NaN where norm is not finite, which
//                 makes the optimizer leave all weights as they are
//
// x is any number of elements. The sum is taken over blocks of kSumBlock elements and then over the
// blocks, in an order that depends on the number of elements alone: the same bits for any number of
// threads, in every run. A NaN or an infinity stays in the sum. To sum several tensors, call
// sum_squares on each, with `add`, in one order: they follow each other on the stream. Between
// ranks the double is reduced by the caller, before clip_scale. x empty: adds 0.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

inline constexpr int64_t kSumBlock = 16384;

struct SumSquares {
  MatRef x;                   // [1, N]  contiguous
  double* out = nullptr;      // [1]
  void* workspace = nullptr;  // workspace_bytes(args), on eight bytes
  bool add = false;           // to what `out` holds
};

struct ClipScale {
  const double* sum_squares = nullptr;  // [1]
  float* scale = nullptr;               // [1]  out
  float* norm = nullptr;                // [1]  out, before clipping
  float max_norm = 0;                   // > 0; infinity: no clipping
};

void validate(const SumSquares& args);  // throws on a broken contract; every path calls it
void validate(const ClipScale& args);
int64_t bytes_moved(const SumSquares& args);  // the roofline's numerator
int64_t workspace_bytes(const SumSquares& args);

void sum_squares_ref(const SumSquares& args);                        // plain, in long double
void sum_squares_cpu(const SumSquares& args, const Pool& pool);      // what CPU runs use
void sum_squares_cuda(const SumSquares& args, cudaStream_t stream);  // asynchronous

void clip_scale_ref(const ClipScale& args);
void clip_scale_cpu(const ClipScale& args, const Pool& pool);
void clip_scale_cuda(const ClipScale& args, cudaStream_t stream);

}  // namespace troupe
