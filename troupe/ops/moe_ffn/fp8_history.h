// What recipe delayed remembers of a module's operands (rule Q8-21), and the scales that it makes of
// it. With h[o, i] the largest value of operand o in the i-th step before this one, f32
// [operands, steps], newest first, 0: no such step:
//
//   m[o] = max_i h[o, i]            the scale of each call is made of it; of the call's own largest
//                                   value where m is 0, and where that value is not finite
//   r[o] = max of own largest       over the calls of this step that a gradient follows, forward and
//                                   backward, of all ranks
//   at a step's end, where 0 < r[o] < infinity: h[o] = r[o] and h[o] without its oldest;  r[o] = 0
//
// So an operand that saw no rows keeps its history, and so does one whose values were not finite.
// Values above 448 s, s the scale of m, become 448 s. A call without a gradient, as an evaluation's,
// changes nothing. All is decided on the device; h and r stay where they are in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "troupe/ops/moe_ffn/fp8_weights.h"

namespace troupe {

// The input of the product that reads the module's input, the gradient of that product's output, and
// the same of the product that gives the module's output. A module of one product has the first two.
enum class Fp8Operand { kIn, kInGrad, kOut, kOutGrad };

constexpr Fp8Operand input_of(Fp8Weights::Which product) {
  return product == Fp8Weights::kIn ? Fp8Operand::kIn : Fp8Operand::kOut;
}
constexpr Fp8Operand gradient_of(Fp8Weights::Which product) {
  return product == Fp8Weights::kIn ? Fp8Operand::kInGrad : Fp8Operand::kOutGrad;
}

class Fp8History {
 public:
  // h from now on, which end_of_step() writes.
  void use(const at::Tensor& maxima);
  // [1]: what a scale is made of, with `own` [1] the largest value at hand. `counts`: a gradient
  // follows.
  at::Tensor largest(Fp8Operand operand, const at::Tensor& own, bool counts);
  void forget();  // r, as if the step had not begun: it is done again

  // Ends a step of all of them, which have equally many steps. `over_ranks`: the maximum over ranks
  // of a tensor; empty: one rank. Returns the number of operands with values that became 448 s,
  // int64 []; those of a step that was not finite do not count.
  using Over = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor end_of_step(const std::vector<Fp8History*>& all, const Over& over_ranks = {});

 private:
  at::Tensor maxima_;   // h
  at::Tensor running_;  // r, [operands]
};

}  // namespace troupe
