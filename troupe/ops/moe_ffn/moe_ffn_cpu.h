// The CPU path of ops/moe_ffn/moe_ffn: products by BLAS over blocks of an expert's rows, everything
// else fused around them while a block is in cache. Blocks are tasks of fixed shape, so the result
// is the same for any number of threads.
#pragma once

#include <cstdint>

#include "troupe/kernels/activation/activation.h"

namespace troupe {

// T: float or double. Pointers are dense, row-major.
template <class T>
struct FfnProblem {
  int64_t tokens, choices, experts, width, hidden;  // T, K, E, D, F
  ActivationKind kind;
  bool gated;                              // H has 2F columns, or F
  Dtype stored = dtype_of<T>;              // of x: H, Y and the rows of dX are rounded to it
  const T* x = nullptr;                    // [S, D]
  const T* weights = nullptr;              // [T, K]
  const T* w1 = nullptr;                   // [E, G F, D]
  const T* b1 = nullptr;                   // [E, G F] or null
  const T* w2 = nullptr;                   // [E, D, F]
  const T* b2 = nullptr;                   // [E, D] or null
  const T* up = nullptr;                   // [E, F, D] or null; then w1 is [E, F, D], the gate
  bool up_columns = false;                 // w1 and up are in by out: [E, D, G F]
  bool down_columns = false;               // w2 is [E, F, D]
  bool interleaved = false;                // gate and up take turns in w1 and b1
  const int32_t* expert_offset = nullptr;  // [E + 1]
  const int64_t* counts = nullptr;    // [E]  rows of a segment before its pads, which are skipped
  const int32_t* row_src = nullptr;   // [R]
  const int32_t* row_slot = nullptr;  // [R]
  const int32_t* slot_row = nullptr;  // [T, K]

  int64_t hidden_columns() const { return gated ? 2 * hidden : hidden; }
};

// What backward computes; a null pointer is not wanted (rule X8).
template <class T>
struct FfnGradients {
  T* weights = nullptr;  // [T, K]
  T* w1 = nullptr;
  T* b1 = nullptr;
  T* w2 = nullptr;
  T* b2 = nullptr;
  T* up = nullptr;
};

// hidden [R, G F] is written, and Y to rows_D [R, D]; null where only hidden is wanted
// (recomputation).
template <class T>
void moe_ffn_forward_cpu(const FfnProblem<T>& p, T* hidden, T* rows_D);

// sums_D[t, :] = sum over k, in order, of rows_D[slot_row[t, k], :]: out of Y, or dX of its rows.
template <class T>
void sum_rows_cpu(const FfnProblem<T>& p, const T* rows_D, T* sums_D);

// grad_out [T, D]; hidden as forward left it: gate, then up, in every layout of the weights.
// Written: grad_hidden [R, G F], which may be hidden, act [R, F], and rows_D [R, D], the rows of dX;
// null: not wanted.
template <class T>
struct FfnScratch {
  T* grad_hidden;
  T* act;
  T* rows_D;
};
template <class T>
void moe_ffn_backward_cpu(const FfnProblem<T>& p, const T* hidden, const T* grad_out,
                          const FfnScratch<T>& scratch, const FfnGradients<T>& out);

// Its halves. The first makes out.weights, and leaves the rows of dX, dH and A in the scratch; of
// the last two the second makes the rest.
template <class T>
void moe_ffn_rows_backward_cpu(const FfnProblem<T>& p, const T* hidden, const T* grad_out,
                               const FfnScratch<T>& scratch, const FfnGradients<T>& out);
template <class T>
void moe_ffn_weights_backward_cpu(const FfnProblem<T>& p, const T* grad_out,
                                  const FfnScratch<T>& scratch, const FfnGradients<T>& out);

}  // namespace troupe
