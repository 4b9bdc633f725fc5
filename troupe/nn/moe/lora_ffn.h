// Feed-forwards whose two frozen matrices have low-rank adapters (nn/parts/lora.h), are kept in few
// bits (nn/parts/kept_matrix.h), or both, by products of the matrix and of the factors that stand
// apart:
//
//   h = W1 x + b1 + s B1 (A1 d(x)),   u = the activation of h (nn/moe/ffn_units.h),
//   y = W2 u + b2 + s B2 (A2 d(u))
//
// For experts these are grouped products; each row's result is multiplied by its score behind W2,
// which is the fused operator's value but for rounding.
#pragma once

#include "troupe/nn/moe/experts.h"
#include "troupe/nn/parts/kept_matrix.h"
#include "troupe/nn/parts/lora.h"
#include "troupe/nn/parts/tensor_parts.h"

namespace troupe {

// Adapters of one feed-forward that every token passes, of w1 [G, F, D] and w2 [D, F].
struct FfnLora {
  FfnLora(const LoraConfig& config, const Param& w1, const Param& w2, DropPlace up_place,
          DropPlace down_place);

  void cut(const TensorParts& parts);  // over tensor ranks, as w1 and w2 by their hidden width

  static void visit(auto& m, auto&& f) {
    f("w1_lora_a", m.up.a);
    f("w1_lora_b", m.up.b);
    f("w1_lora_m", m.up.m);
    f("w2_lora_a", m.down.a);
    f("w2_lora_b", m.down.b);
    f("w2_lora_m", m.down.m);
  }

  LoraFactors up, down;
};

// W1 [G F, D] and W2 [D, F] with b1 [G F] and b2 [D]; of experts [E, ..] each.
struct FfnMatrices {
  FfnMatrices(const Param& w1, const Param& w2);

  KeptMatrix up, down;
  bool gated;                   // G = 2
  at::Tensor b1 = {}, b2 = {};  // undefined: none
};

// x [T, D].
at::Tensor lora_dense_ffn(const at::Tensor& x_TD, const FfnMatrices& w,
                          const std::optional<FfnLora>& lora, const FfnOptions& options,
                          const Context& context);

// Factors of all local experts: A1 [E, r, D], B1 [E, G F, r], A2 [E, r, F], B2 [E, D, r].
struct ExpertFactors {
  at::Tensor a1, b1, a2, b2;
  double scale;
  double dropout = 0;
  Context rows = {};  // of the permuted rows, whose index_T names each (expert_row_context)
};

// The context of the experts' rows where source row s is token s of `context`: a row's index is of
// its token and of the slot that chose the expert, so that each expert drops for itself.
Context expert_row_context(const Context& context, const ExpertRows& rows);

// As loop_ffn, in grouped products. Waits for no device.
at::Tensor lora_experts_ffn(const ExpertRows& rows, const FfnMatrices& w,
                            const std::optional<ExpertFactors>& lora, const FfnOptions& options,
                            Recompute again = Recompute::kNone);

}  // namespace troupe
