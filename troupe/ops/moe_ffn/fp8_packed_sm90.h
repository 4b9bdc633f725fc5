// Products of 8-bit operands on a Hopper GPU, each in a pass of its own: of rows packed by expert
// that are rounded where they are read. It is how recipes whose scales the joint kernels of
// moe_ffn_fp8_sm90 do not make (tensor, block) are multiplied in 8 bits.
#pragma once

#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/moe_ffn/fp8_sm90.h"
#include "troupe/ops/support/plan.h"

namespace troupe {

class Fp8PackedSm90 : Fp8Sm90 {
 public:
  Fp8PackedSm90(const at::Tensor& like, const Plan& plan, const Fp8Options& fp8);

  // tile(x) block(w)^T, or with kInOut tile(x) block(w); x [R, K], w [E, N, K] in its own order.
  // `largest`: of x where its tiles share a scale.
  at::Tensor product(const at::Tensor& x_RC, const std::optional<at::Tensor>& largest,
                     Fp8Weights::Which which, const at::Tensor& w, WeightOrder order) const;
  // Of tokens and of rows, where they share a scale.
  struct Largest {
    std::optional<at::Tensor> tokens, rows;
  };
  // block(s rows)^T q(tokens), [E, C, D]; or with `tokens_first` its transpose. tokens [T, D] with
  // scales s; rows [R, C].
  at::Tensor weight_gradient(const at::Tensor& tokens_TD, const at::Tensor& rows_RC,
                             const Largest& largest, bool tokens_first) const;

 private:
  const Fp8Options& fp8_;
};

}  // namespace troupe
