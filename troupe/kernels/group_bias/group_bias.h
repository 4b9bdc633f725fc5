// The experts' biases (rule X6): to each row its expert's, and backward the experts' column sums.
//
//   y[r, :] = x[r, :] + score[r] bias[e(r), :]
//
//   backward, given G = the gradient of y (which is also that of x):
//   grad_bias[e, :] = sum over the rows r of e of score[r] G[r, :]   exactly 0 for an empty expert
//   grad_score[r]   = sum_d bias[e(r), d] G[r, d]       added to what is there, if asked
//
// e(r) is the expert with expert_offset[e] <= r < expert_offset[e + 1]. Shapes: R rows (a bound:
// only rows below expert_offset[E] are read and written), D columns, E experts. Without a score it
// is 1. The sum is formed in float (double for f64) and rounded once. Column sums run over the rows
// in an order that depends on the row numbers alone: the same bits for any number of threads, in
// every run. Rows of padding between the experts take part: their G must be 0. y may be x.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"

namespace troupe {

struct GroupBias {
  MatRef x;                                // [R, D]
  MatRef bias;                             // [E, D]  of x's type
  MutRef y;                                // [R, D]  out
  const int32_t* expert_offset = nullptr;  // [E + 1]
  MatRef score = {};                       // [R, 1]  float (double for f64), or none
};

struct GroupBiasBackward {
  MatRef grad_y;                           // [R, D]
  MutRef grad_bias;                        // [E, D]  out, float (double for f64)
  const int32_t* expert_offset = nullptr;  // [E + 1]
  MatRef score = {};                       // [R, 1]  or none
  MatRef bias = {};                        // [E, D]  with grad_score
  MutRef grad_score = {};                  // [R, 1]  out, or none
  bool add_to_grad_score = false;          // beside what the activation's backward left there
};

void validate(const GroupBias& args);  // throws on a broken contract; every path calls it
void validate(const GroupBiasBackward& args);
int64_t bytes_moved(const GroupBias& args);  // the roofline's numerator, all R rows
int64_t bytes_moved(const GroupBiasBackward& args);

void group_bias_ref(const GroupBias& args);                    // the formula in double: for tests
void group_bias_cpu(const GroupBias& args, const Pool& pool);  // what CPU runs use
void group_bias_cuda(const GroupBias& args, cudaStream_t stream);  // asynchronous

void group_bias_backward_ref(const GroupBiasBackward& args);
void group_bias_backward_cpu(const GroupBiasBackward& args, const Pool& pool);
void group_bias_backward_cuda(const GroupBiasBackward& args, cudaStream_t stream);

}  // namespace troupe
