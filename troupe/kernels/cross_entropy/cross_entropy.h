// Cross entropy of a chunk of logits with its z-loss, and its gradient in place of the logits.
//
//   lse[t]  = log sum_v exp(x[t, v])
//   loss[t] = weight[t] (lse[t] - x[t, target[t]] + z_loss lse[t]^2)
//
//   backward, given g[t] = the gradient of loss[t]:
//   grad_x[t, v] = g[t] weight[t] (softmax(x[t])[v] (1 + 2 z_loss lse[t]) - [v == target[t]])
//
//   target[t] == ignore: loss[t] = lse[t] = 0, grad_x[t, :] = 0, and the logits are not read
//
// Shapes: T tokens, V words. No weights: 1. A target that is neither ignore nor in [0, V) gives a
// loss and a gradient of NaN. x[t, v] = -inf is a word of probability 0; +inf and NaN give NaN.
// Arithmetic is float (double for f64) around the row's maximum. The z-loss summed alone, for logs,
// is z_loss sum_t weight[t] lse[t]^2. Losses are per token: the caller sums, and divides by the
// number of tokens in all chunks, ranks and microbatches. So a head may call this chunk by chunk,
// forward and at once backward, and the logits of all tokens never exist together:
//   for each chunk: x = h W^T; loss, lse; x <- grad_x; grad_h = x W; grad_W += x^T h
// Memory: grad_x may be x. A row's sums are one thread's or one block's, in a fixed order: the same
// bits for any number of threads, in every run.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

struct CrossEntropy {
  MatRef logits;                    // [T, V]
  const int64_t* target = nullptr;  // [T]
  MutRef loss;                      // [T, 1]  out, float (double for f64)
  MutRef lse;                       // [T, 1]  out
  MatRef weight = {};               // [T, 1]  or none
  float z_loss = 0;
  int64_t ignore = -100;
};

struct CrossEntropyBackward {
  MatRef logits;                    // [T, V]
  const int64_t* target = nullptr;  // [T]
  MatRef lse;                       // [T, 1]
  MatRef grad_loss;    // [T, 1]; rows 0 apart (ld = 0) where all tokens have one gradient
  MutRef grad_logits;  // [T, V]  out
  MatRef weight = {};  // [T, 1]  or none
  float z_loss = 0;
  int64_t ignore = -100;
};

void validate(const CrossEntropy& args);  // throws on a broken contract; every path calls it
void validate(const CrossEntropyBackward& args);
int64_t bytes_moved(const CrossEntropy& args);  // the roofline's numerator
int64_t bytes_moved(const CrossEntropyBackward& args);

void cross_entropy_ref(const CrossEntropy& args);                        // the formula in double
void cross_entropy_cpu(const CrossEntropy& args, const Pool& pool);      // what CPU runs use
void cross_entropy_cuda(const CrossEntropy& args, cudaStream_t stream);  // asynchronous

void cross_entropy_backward_ref(const CrossEntropyBackward& args);
void cross_entropy_backward_cpu(const CrossEntropyBackward& args, const Pool& pool);
void cross_entropy_backward_cuda(const CrossEntropyBackward& args, cudaStream_t stream);

}  // namespace troupe
