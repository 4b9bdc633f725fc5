// The experts' activation, with the combine weight multiplied in (rules X1 to X4), and its
// backward.
//
//   gated (h has 2F columns): g = h[r, f], v = h[r, F + f]
//                             u0[r, f] = act(min(g, m)) (clamp(v, -m, m) + o)
//   plain (h has F columns):  g = h[r, f],  u0[r, f] = act(min(g, m))
//   u[r, f] = score[r] u0[r, f]
//
//   backward, given G = the gradient of u:
//   grad_h[r, :]  = score[r] G du0/dg, score[r] G du0/dv     exactly 0 beyond the clamp
//   grad_score[r] = sum_f u0[r, f] G[r, f]                   before rounding, in a fixed order
//   u             = as in forward, the same bits: what dW2 multiplies
//
// Shapes: R rows, F hidden units. Arithmetic is float (double for f64): h is read, u0 formed,
// multiplied by the score and rounded once. score is float (double for f64); without one it is 1.
// Rows: with expert_offset [E + 1] only rows below expert_offset[E] are read and written, so that
// the host need not know their number; R is a bound. Without it all R rows. Memory: grad_h may be
// h, u may be grad_u (each unit is read before it is written); nothing else may overlap. All
// results are the same bits for any number of threads and in every run.
#pragma once

#include <limits>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/activation/functions.h"

namespace troupe {

struct ActivationKind {
  Act act = Act::kSilu;
  float clamp = std::numeric_limits<float>::infinity();  // m > 0
  float offset = 0;                                      // o; gated form only
};

struct Activation {
  MatRef h;                                // [R, 2F] gate | up, or [R, F]
  MutRef u;                                // [R, F]  out, of h's type
  MatRef score = {};                       // [R, 1]  or none
  const int32_t* expert_offset = nullptr;  // [E + 1] or none
  int64_t num_experts = 0;                 // E, with expert_offset
  ActivationKind kind = {};
};

struct ActivationBackward {
  MatRef h;                                // [R, 2F] or [R, F]
  MatRef grad_u;                           // [R, F]
  MutRef grad_h;                           // [R, 2F] or [R, F]  out
  MatRef score = {};                       // [R, 1]  or none
  MutRef grad_score = {};                  // [R, 1]  out, or none
  MutRef u = {};                           // [R, F]  out, or none
  const int32_t* expert_offset = nullptr;  // [E + 1] or none
  int64_t num_experts = 0;                 // E, with expert_offset
  ActivationKind kind = {};
};

void validate(const Activation& args);  // throws on a broken contract; every path calls it
void validate(const ActivationBackward& args);
int64_t bytes_moved(const Activation& args);  // the roofline's numerator, all R rows
int64_t bytes_moved(const ActivationBackward& args);

void activation_ref(const Activation& args);                    // the formula in double
void activation_cpu(const Activation& args, const Pool& pool);  // on a block of rows: pass `serial`
void activation_cuda(const Activation& args, cudaStream_t stream);  // asynchronous

void activation_backward_ref(const ActivationBackward& args);
void activation_backward_cpu(const ActivationBackward& args, const Pool& pool);
void activation_backward_cuda(const ActivationBackward& args, cudaStream_t stream);

}  // namespace troupe
