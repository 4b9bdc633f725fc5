// Gradients that are added in no order: run.bits layout. A layout decides which rank adds which
// microbatches, and which ranks' sums meet where, so a sum of floats has other bits in each. These
// have the same in all: the sum of one parameter's gradients, of whatever microbatches and ranks, is
// a sum of pairs of int64 for each element (core/number/exact_sum.h), and becomes f32 when it is
// whole. The unit that is added must then be the same in all layouts: the gradient of one use of a
// parameter by one microbatch (StepInput::apart), of an expert by the rows of one microbatch
// (ExpertRows::parts).
//
// A pair is 16 bytes, where a sum in f32 is 4: in memory for each element of each gradient, and
// between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "troupe/core/number/exact_sum.h"

namespace troupe {

// Elements of pairs for n numbers, int64: number i has 2 i and 2 i + 1.
inline constexpr int64_t pair_elements(int64_t n) {
  return 2 * n;
}

// Adds x [n], of any float type but f64, to pairs [2 n] on the CPU. False: a number is not finite,
// or not below kPairLimit, and the sum means nothing.
bool add_to_pairs(const at::Tensor& pairs, const at::Tensor& x);
at::Tensor values_of_pairs(const at::Tensor& pairs);  // f32 [n]

// The sum of the squares of all elements, f32 on the CPU.
ExactSum exact_squares(const std::vector<at::Tensor>& tensors);

}  // namespace troupe
